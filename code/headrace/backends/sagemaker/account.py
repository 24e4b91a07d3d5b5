"""The AWS account that a job is submitted to: region, role, bucket. Turns AWS's errors into one line each."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import botocore.config
from botocore import exceptions

from headrace.backends.sagemaker.cloud_options import ROLE_ARN
from headrace.errors import HeadraceError, InputError, SetupError

_CLIENT = botocore.config.Config(
    retries={"mode": "standard", "max_attempts": 5}, connect_timeout=10, read_timeout=60, user_agent_extra="headrace"
)
_DENIED = {"AccessDenied", "AccessDeniedException", "403", "Forbidden", "UnauthorizedOperation"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException",
            "InvalidAccessKeyId", "SignatureDoesNotMatch"}  # fmt: skip
_PARTITIONS = {
    "cn-": ("aws-cn", "console.amazonaws.cn"),
    "us-gov-": ("aws-us-gov", "console.amazonaws-us-gov.com"),
    "": ("aws", "console.aws.amazon.com"),
}
"""AWS partition, and host name of the AWS console, by the prefix of a region's name."""


def find_region(given: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the region from the flag, else the environment, else the AWS configuration's profile, else None."""
    if named := given or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        return named
    try:
        found: str | None = boto3.Session().region_name
        return found
    except exceptions.BotoCoreError as error:
        raise InputError(f"the AWS configuration is broken: {error}; correct AWS_PROFILE or ~/.aws/config") from error


def require_region(given: str | None, environ: Mapping[str, str]) -> str:
    """Return the region as `find_region` does. Raises `InputError` if there is none."""
    if region := find_region(given, environ):
        return region
    raise InputError("no region: give --region, set AWS_REGION, or run `aws configure`")


class Account:
    """An AWS account in one region, and the calls that are made to it."""

    def __init__(self, region: str) -> None:
        self.region = region
        with aws_errors("finding AWS credentials"):
            self._session = boto3.Session(region_name=region)
            self.id = str(self.client("sts").get_caller_identity()["Account"])

    def client(self, service: str) -> Any:
        """Return a boto3 client with a deadline on every call."""
        return self._session.client(service, config=_CLIENT)

    def role_arn(self, role: str) -> str:
        """Return the ARN of a role that is given by ARN or by name.

        Raises:
            InputError: the account has no such role.
        """
        if role.startswith("arn:"):
            return role
        absent = f"--role {role!r}: this account has no such role"
        with aws_errors(f"looking up the role {role!r}", absent, ("NoSuchEntity", "ValidationError")):
            return str(self.client("iam").get_role(RoleName=role)["Role"]["Arn"])

    def describe_job(self, job_name: str) -> dict[str, Any]:
        """Return SageMaker's description of a training job. Raises `InputError` if there is none of this name."""
        absent = f"there is no training job {job_name!r} in {self.region}"
        with aws_errors(f"looking up {job_name}", absent, ("ValidationException", "ResourceNotFound")):
            return dict(self.client("sagemaker").describe_training_job(TrainingJobName=job_name))

    def make_default_bucket(self) -> None:
        """Make the bucket that SageMaker's own tools use by default, if it is missing."""
        bucket, s3 = default_bucket(self.region, self.id), self.client("s3")
        with aws_errors(f"looking at the bucket {bucket}"), ignored("404", "NoSuchBucket"):
            s3.head_bucket(Bucket=bucket, ExpectedBucketOwner=self.id)
            return
        with aws_errors(f"making the bucket {bucket}"):
            where = {"CreateBucketConfiguration": {"LocationConstraint": self.region}}
            s3.create_bucket(Bucket=bucket, **(where if self.region != "us-east-1" else {}))

    def upload(self, path: Path, uri: str) -> None:
        """Upload a file to an `s3://` address."""
        bucket, key = split_s3(uri)
        with aws_errors(f"uploading to {uri}"):
            self.client("s3").upload_file(str(path), bucket, key)

    def download(self, uri: str, path: Path) -> bool:
        """Download an object into a file; return False if there is no such object."""
        bucket, key = split_s3(uri)
        with aws_errors(f"fetching {uri}"), ignored("404", "NoSuchKey", "NoSuchBucket"):
            self.client("s3").download_file(bucket, key, str(path))
            return True
        return False


def default_bucket(region: str, account_id: str) -> str:
    """Return the name of the bucket that SageMaker's SDKs make by default."""
    return f"sagemaker-{region}-{account_id}"


def account_of(role: str) -> str | None:
    """Return the account number in a role's ARN; None if `role` is not an ARN."""
    match = ROLE_ARN.fullmatch(role)
    return match[1] if match else None


def role_arn_of(name: str, region: str, account_id: str) -> str:
    """Return a role's ARN from its name, for a role without an IAM path."""
    return f"arn:{_partition(region)[0]}:iam::{account_id}:role/{name}"


def console(region: str, page: str) -> str:
    """Return the web address of a page of the AWS console, such as the page `sagemaker/home`."""
    return f"https://{region}.{_partition(region)[1]}/{page}?region={region}"


def _partition(region: str) -> tuple[str, str]:
    return next(found for begin, found in _PARTITIONS.items() if region.startswith(begin))


def split_s3(uri: str) -> tuple[str, str]:
    """Return the bucket and the key of an `s3://` address."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def is_denied(error: HeadraceError) -> bool:
    """Return whether AWS refused a call because the credentials, though valid, lack the permission."""
    cause = error.__cause__
    return isinstance(cause, exceptions.ClientError) and cause.response["Error"].get("Code") in _DENIED


@contextlib.contextmanager
def ignored(*codes: str) -> Iterator[None]:
    """A context manager that suppresses AWS errors with these codes."""
    try:
        yield
    except exceptions.ClientError as error:
        if error.response["Error"]["Code"] not in codes:
            raise


@contextlib.contextmanager
def aws_errors(doing: str, absent: str = "", absent_codes: Collection[str] = ()) -> Iterator[None]:
    """Turn an AWS or network error into one line with a remedy. For codes in `absent_codes`, the line is `absent`."""
    try:
        yield
    except HeadraceError:
        raise
    except (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.TokenRetrievalError,
        exceptions.SSOError,
        exceptions.CredentialRetrievalError,
    ) as error:
        raise InputError(
            f"{doing}: no usable AWS credentials ({error}); run `aws configure` or `aws sso login`, or set AWS_PROFILE"
        ) from error
    except exceptions.ProfileNotFound as error:
        raise InputError(f"{doing}: {error}; correct AWS_PROFILE, or add the profile to ~/.aws/config") from error
    except (exceptions.EndpointConnectionError, exceptions.ConnectionError, exceptions.HTTPClientError) as error:
        raise SetupError(f"{doing}: cannot reach AWS ({error}); check the network and --region") from error
    except exceptions.ClientError as error:
        code, said = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
        if code in absent_codes:
            raise InputError(absent) from error
        hint = ""
        if code in _DENIED:
            hint = "; these credentials lack the permission: ask for it, or use others (AWS_PROFILE)"
        elif code in _EXPIRED:
            hint = "; the credentials are no longer valid: run `aws configure` or `aws sso login`"
        raise SetupError(f"{doing}: AWS refuses: {code}: {' '.join(said.split())}{hint}") from error
    except Exception as error:
        if isinstance(error, exceptions.BotoCoreError) or type(error).__module__.startswith(("boto3", "s3transfer")):
            raise SetupError(f"{doing}: {' '.join(str(error).split())}") from error
        raise
