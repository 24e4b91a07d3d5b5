"""A job survives faults. What died is restarted, or the job names it and continues without it."""

import os
import sys

import pytest

from tests.faults.breakage import (
    DISPATCHER,
    LAUNCHER,
    WORKER,
    cut_off,
    in_namespace_of,
    kill,
    kill_host,
    slow_down,
)
from tests.support import finish, process_of, wait_for


def test_killed_servers_come_back_and_training_succeeds(victim):
    job = victim("--epochs=10")
    kill(job, "algo-1", DISPATCHER)
    wait_for(lambda: "event=restarted role=dispatcher" in job.text(), "the dispatcher's restart")
    job.wait_for_steps(2)
    kill(job, "algo-2", WORKER)
    kill(job, "algo-3", WORKER)
    wait_for(lambda: job.text().count("event=restarted role=worker") == 2, "the workers' restarts")
    job.wait_for_steps(2)
    run = finish(job.process, job.folder)
    assert run.code == 0, run.output[-3000:]
    restarts = {host: record["restarts"] for host, record in run.summary["hosts"].items()}
    assert restarts["algo-1"]["dispatcher"] == 1
    assert restarts["algo-2"]["worker"] == restarts["algo-3"]["worker"] == 1


def test_a_lost_data_host_is_named_and_the_job_goes_on(toy_victim):
    job = toy_victim("--epochs=12")
    kill_host(job, "algo-2")
    run = finish(job.process, job.folder)
    assert run.code == 0, run.output[-3000:]
    assert run.summary["outcome"] == "succeeded"
    assert [host for host, record in run.summary["hosts"].items() if record["lost"]] == ["algo-2"]
    assert run.events("host_lost")[0].fields["host"] == "algo-2"


def test_a_data_host_that_never_came_is_named_and_done_without(toy_victim):
    job = toy_victim("--epochs=4", "--hyperparameter=startup_timeout_s=60", stepping=False)
    wait_for(lambda: "event=topology host=algo-2" in job.text(), "algo-2's launcher")
    kill_host(job, "algo-2")
    run = finish(job.process, job.folder)
    assert run.code == 0, run.output[-3000:]
    assert [host for host, record in run.summary["hosts"].items() if record["lost"]] == ["algo-2"]


def test_where_one_host_lacks_the_transfer_all_read_by_grpc_and_the_log_says_so(victim):
    job = victim("--epochs=3", stepping=False, lost_transfer=True)
    run = finish(job.process, job.folder)
    assert run.code == 0, run.output[-3000:]
    assert [event.fields["protocol"] for event in run.events("data_transfer")] == ["grpc"]
    assert "batches travel over gRPC, at half speed: algo-2/worker can use only gRPC" in run.log("algo-3")


def test_a_network_cut_of_five_seconds_is_survived(toy_victim):
    job = toy_victim("--epochs=12", "--hyperparameter=lease_s=20")
    cut_off(job, "algo-1", 5)
    run = finish(job.process, job.folder)
    assert run.code == 0, run.output[-3000:]
    assert not run.events("host_lost")


def test_a_slow_link_that_loses_frames_is_survived(toy_victim):
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("this machine has no TAP devices")
    job = toy_victim("--epochs=2", "--hyperparameter=lease_s=30")  # by chance, several calls in a row may fail
    link = slow_down(job, "algo-2", delay_s=0.2, loss=0.1)
    try:
        run = finish(job.process, job.folder)
    finally:
        link.kill()
        link.communicate()
    assert run.code == 0, run.output[-3000:]
    for lost in run.events("host_lost"):
        # The host and its network ended after the host received the outcome. Only the host's answer can be lost.
        assert lost.fields["error"].startswith("has_not_received_the_outcome"), lost
        assert "event=outcome status=succeeded" in run.log(lost.fields["host"])


def test_unauthenticated_clients_by_the_thousand_change_nothing(toy_victim):
    job = toy_victim("--epochs=30")  # longer than all the clients take
    code = """
import grpc, socket, sys, time
host = sys.argv[1]
held = []
for number in range(1500):
    connection = socket.create_connection((host, 16000 if number < 1000 else 6001), timeout=60)
    if number % 3 == 0: connection.sendall(b"\\x00garbage" * 50)
    if number % 3 == 1: connection.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n")
    held.append(connection)
channel = grpc.insecure_channel(f"{host}:16000")
refused = 0
for number in range(200):
    try: channel.unary_unary(f"/headrace.Control/renew")(b'{"v":1,"outcome":{"status":"failed"}}', timeout=60)
    except grpc.RpcError as error: refused += error.code() == grpc.StatusCode.UNAUTHENTICATED
print(refused)
"""
    for host in ("algo-1", "algo-2"):
        pid = process_of(job.folder.name, "algo-3", LAUNCHER).pid
        assert in_namespace_of(pid, sys.executable, "-c", code, host).strip() == "200"
    run = finish(job.process, job.folder)
    assert run.code == 0, run.output[-3000:]
    assert 1 <= run.log("algo-1").count("control channel refused") <= 20
