"""A job is followed to its end, though AWS may fail to answer for a time."""

import pytest
from botocore import exceptions
from headrace.backends.sagemaker import job_follow
from headrace.backends.sagemaker.job_follow import Console
from headrace.backends.sagemaker.logs import LogTail
from headrace.errors import SetupError


def refusal(code):
    return exceptions.ClientError({"Error": {"Code": code, "Message": "no"}}, "Asked")


class Sagemaker:
    """A SageMaker client that gives its answers one after another, and then repeats the last one."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def describe_training_job(self, TrainingJobName):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {"TrainingJobStatus": answer}


class Logs:
    """A fake logs client with one stream and one line on each page. A page that is an exception is raised once."""

    def __init__(self, *pages):
        self.pages = list(pages)

    def get_paginator(self, name):
        return self

    def paginate(self, **_):
        return [{"logStreams": [{"logStreamName": "job/algo-1-1700000000"}]}]

    def get_log_events(self, nextToken="0", **_):
        number = int(nextToken)
        if number < len(self.pages) and isinstance(self.pages[number], Exception):
            raise self.pages.pop(number)
        events = [{"message": line} for line in self.pages[number : number + 1]]
        return {"events": events, "nextForwardToken": str(min(number + 1, len(self.pages)))}


class Account:
    def __init__(self, sagemaker, logs):
        self.region, self.sagemaker, self.logs = "us-west-2", sagemaker, logs

    def client(self, service):
        return getattr(self, service)


@pytest.fixture
def followed(monkeypatch):
    """Function that follows a job with fake clients. Returns the job's last status or an error, and printed lines."""

    def play(sagemaker, logs):
        account, said, clock = Account(sagemaker, logs), [], [0.0]
        monkeypatch.setattr(job_follow, "Account", lambda region: account)  # made again to get new credentials
        console = Console(said.append, lambda _: False, lambda seconds: clock.__setitem__(0, clock[0] + seconds))
        follower = job_follow.Follower(account, "job", console, lambda: clock[0])
        try:
            return follower.wait()["TrainingJobStatus"], said
        except SetupError as error:
            return str(error), said

    return play


@pytest.mark.parametrize(
    "error",
    [
        refusal("ExpiredTokenException"),
        refusal("ThrottlingException"),
        refusal("InternalFailure"),
        exceptions.EndpointConnectionError(endpoint_url="https://sagemaker"),
        exceptions.ReadTimeoutError(endpoint_url="https://sagemaker"),
    ],
)
def test_a_question_without_an_answer_is_asked_again(error, followed):
    end, said = followed(Sagemaker("InProgress", error, error, "InProgress", "Completed"), Logs("headrace"))
    assert end == "Completed"
    assert sum("retrying" in line for line in said) == 1


def test_after_an_hour_without_answers_it_is_said_that_the_job_goes_on_and_how_to_stop_it(followed):
    end, _ = followed(Sagemaker("InProgress", refusal("ExpiredTokenException")), Logs())
    assert "goes on" in end and "stop-training-job --training-job-name job" in end and "headrace report job" in end


def test_who_may_not_ask_is_told_at_once(followed):
    end, said = followed(Sagemaker(refusal("AccessDeniedException")), Logs())
    assert "lack the permission" in end and "goes on" in end
    assert len(said) <= 2


def test_a_job_is_followed_to_its_end_by_whoever_may_not_read_logs(followed):
    end, said = followed(Sagemaker("InProgress", "InProgress", "Completed"), Denied())
    assert end == "Completed"
    assert sum("without its logs" in line for line in said) == 1


class Denied(Logs):
    def paginate(self, **_):
        raise refusal("AccessDeniedException")


@pytest.mark.parametrize("code", ["ThrottlingException", "InternalFailure"])
def test_no_line_is_lost_and_none_comes_twice_when_a_page_is_refused(code):
    said = []
    logs = Logs("headrace event=topology host=algo-1 group=dnn_group role=dnn", "one", refusal(code), "two")
    tail = LogTail(logs, "job", said.append)
    for _ in range(3):
        tail.poll()
    assert [line.split(" | ")[1] for line in said if " | algo" not in line and " | " in line][1:] == ["one", "two"]


class LateLogs(Logs):
    """A logs client whose stream grows by one page before each poll. If a page is None, the stream does not grow."""

    def __init__(self, *pages):
        super().__init__()
        self.coming = list(pages)

    def paginate(self, **_):
        self.pages += [page for page in self.coming[:1] if page]
        del self.coming[:1]
        return super().paginate()


@pytest.mark.parametrize("refused", [None, "ThrottlingException", "InternalFailure"])
def test_lines_that_come_after_a_jobs_end_are_read_until_none_comes(refused, followed):
    logs = LateLogs("one", "two", "three", None, "too late")
    logs.coming[1:1] = [refusal(refused)] if refused else []
    end, said = followed(Sagemaker("Completed"), logs)
    assert end == "Completed"
    assert [line.split(" | ")[1] for line in said if " | " in line] == ["one", "two", "three"]
    assert logs.coming == ["too late"]


def test_lines_that_never_end_are_left_to_cloudwatch_after_a_while(followed):
    end, said = followed(Sagemaker("Completed"), LateLogs(*map(str, range(10_000))))
    assert end == "Completed"
    assert any("read the rest in CloudWatch" in line for line in said) and 10 < len(said) < 30
