"""Run one snippet of docs/submit.md in its SDK's environment, with an account that moto simulates; print the job.

python run_snippet.py sdk2|sdk3|boto3 [REQUEST]
"""

import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REGION = "us-east-1"


def main(name, request=None):
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": "/nonexistent",
    }
    import boto3
    from moto import mock_aws

    text = (ROOT / "docs" / "submit.md").read_text()
    (snippet,) = re.findall(rf"```python {name}\n(.*?)```", text, re.DOTALL)
    calls = []

    def record(params, **_):
        calls.append(params)

    original = boto3.Session.client

    def client(session, service, *args, **kwargs):
        made = original(session, service, *args, **kwargs)
        if service == "sagemaker":
            made.meta.events.register("provide-client-params.sagemaker.CreateTrainingJob", record)
        if service == "iam":  # SDK 3 asks what the role may do; moto cannot answer
            made.simulate_principal_policy = lambda **asked: {
                "EvaluationResults": [
                    {"EvalActionName": action, "EvalDecision": "allowed"} for action in asked["ActionNames"]
                ],
                "IsTruncated": False,
            }
        return made

    boto3.Session.client = client
    with mock_aws(), tempfile.TemporaryDirectory() as folder:
        iam = boto3.client("iam")
        iam.create_role(RoleName="SageMakerRole", AssumeRolePolicyDocument="{}")
        for part in ("code", "third_party"):
            shutil.copytree(
                ROOT / part, Path(folder) / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
        if request:
            shutil.copy(request, Path(folder) / "job.json")
        os.chdir(folder)
        exec(compile(snippet, name, "exec"), {})
        os.chdir(ROOT)
    print("\n" + json.dumps(calls[-1], default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
