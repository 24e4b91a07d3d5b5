"""What a job on real Slurm promises: roles, results, one outcome, nothing left."""


def test_a_heterogeneous_job_trains_and_leaves_its_results_in_the_shared_folder(submit, cluster):
    job = submit("--num_of_data_instances=2", "--hyperparameter=steps=5", "--processes_per_host=2")
    assert job.wait_for_end() == "COMPLETED"
    assert job.summary["outcome"] == "succeeded"
    assert {name: host["group"] for name, host in job.summary["hosts"].items()} == {
        "cpu1": "data_group", "cpu2": "data_group", "gpu1": "dnn_group"
    }  # fmt: skip
    assert job.text().count("of 2 on gpu1 sees of Slurm []") == 2
    assert not cluster.job_processes()
