"""A job's cost comes from the built-in table or the user's own prices."""

import json

import pytest
from headrace.backends.sagemaker.job_cost import cost_usd, describe_cost, hourly_usd
from headrace.errors import InputError
from headrace.job.instances import TABLE, read_instances
from headrace.job.spec import InstanceGroup, JobSpec
from headrace.report.command import main as report
from headrace.report.plan import main as plan

from tests.unit.test_plan import summary

GROUPS = (InstanceGroup("data_group", "ml.c5.18xlarge", 2), InstanceGroup("dnn_group", "ml.p4d.24xlarge", 1))
SPEC = JobSpec("job", GROUPS, "service", 8)


def test_the_table_is_dated_and_knows_the_default_types():
    table = read_instances()
    assert table.as_of.startswith("20")
    assert (table.get("ml.c5.18xlarge").vcpus, table.get("ml.p4d.24xlarge").gpus) == (72, 8)


def test_a_job_costs_all_its_hosts_for_all_its_time():
    table = read_instances().with_prices(["ml.c5.18xlarge=3", "ml.p4d.24xlarge=30"])
    assert hourly_usd(SPEC, table) == {"data_group": 6.0, "dnn_group": 30.0}
    assert cost_usd(SPEC, table, 1800) == 18.0
    assert "at most 36.00 USD: 36.00 USD/h for --max_run 3600 s" in describe_cost(SPEC, table, 3600, spot=False)


def test_a_type_without_a_price_is_said_and_never_counted_as_free():
    job = JobSpec("job", (*GROUPS[:1], InstanceGroup("dnn_group", "ml.p6-b200.48xlarge", 1)), "service", 8)
    assert cost_usd(job, read_instances(), 3600) is None
    said = describe_cost(job, read_instances(), 3600, spot=False)
    assert "price unknown: give --price or --prices" in said
    assert "at most" not in said


def test_types_without_a_listed_price_have_gpus_and_no_price_until_one_is_given(tmp_path, capsys):
    table = read_instances()
    assert (table.get("ml.p5.4xlarge").gpus, table.get("ml.p5en.48xlarge").usd_per_hour) == (1, None)
    assert table.ranks_on("ml.p6-b200.48xlarge", None) == 8
    assert table.with_prices(["ml.p5en.48xlarge=70"]).get("ml.p5en.48xlarge").usd_per_hour == 70
    host = summary()["hosts"]["algo-1"] | {"instance_type": "ml.p5en.48xlarge"}
    (tmp_path / "summary.json").write_text(json.dumps(summary(hosts={"algo-1": host})))
    given = ["--price", "ml.p5en.48xlarge=70"]
    for command, flags, told in (
        (plan, [], "ml.p5en.48xlarge has no price in the table"), (plan, given, "on-demand prices"),
        (report, [], "run has no price: the table has none for ml.p5en.48xlarge"), (report, given, "$/hour"),
    ):  # fmt: skip
        assert command([str(tmp_path), *flags]) == 0
        assert told in capsys.readouterr().out
    with pytest.raises(InputError, match="the table has no price for it"):
        plan([str(tmp_path), *given, "--data_instance_type", "ml.p6-b200.48xlarge"])


def test_own_tables_add_to_the_built_in_one(tmp_path):
    header = next(line for line in TABLE.read_text().splitlines() if not line.startswith("#"))
    own = tmp_path / "prices.csv"
    text = f"# as of: 2030-01\n{header}\nml.c9.large,2,0,,4,10,0.5\n"
    own.write_text(text, encoding="utf-8-sig")  # as spreadsheets save it
    table = read_instances(own)
    assert (table.get("ml.c9.large").usd_per_hour, table.as_of) == (0.5, "2030-01")
    assert table.get("ml.c5.xlarge")


@pytest.mark.parametrize(
    "text", ["ml.c5.xlarge", "ml.c5.xlarge=x", "ml.c5.xlarge=-1", "ml.c5.xlarge=nan", "ml.no.no=1"]
)
def test_malformed_prices_are_refused(text):
    with pytest.raises(InputError, match="--price"):
        read_instances().with_prices([text])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        "instance_type,vcpus,gpus,gpu,memory_gib,network_gbps,usd_per_hour\nx,0,0,,1,1,1",
        "instance_type,vcpus,gpus,gpu,memory_gib,network_gbps,usd_per_hour\nx,1,0,,1,1,nan",
        "instance_type,vcpus,gpus,gpu,memory_gib,network_gbps,usd_per_hour\nx,1,0,,1,1,1\nx ,1,0,,1,1,2",
        "instance_type,vcpus,gpus,gpu,memory_gib,network_gbps,usd_per_hour\nx,1",
        "instance_type,vcpus,gpus,gpu,memory_gib,network_gbps,usd_per_hour\n" + "x" * 200_000,
    ],
)
def test_malformed_tables_are_refused(tmp_path, text):
    (tmp_path / "prices.csv").write_text(text)
    with pytest.raises(InputError, match=r"prices\.csv"):
        read_instances(tmp_path / "prices.csv")


def test_a_types_name_counts_without_the_spaces_around_it(tmp_path):
    text = "instance_type,vcpus,gpus,gpu,memory_gib,network_gbps,usd_per_hour\nml.c5.xlarge , 4,0, ,8,1.25, 9.99"
    (tmp_path / "prices.csv").write_text(text)
    assert read_instances(tmp_path / "prices.csv").types["ml.c5.xlarge"].usd_per_hour == 9.99


def test_whose_prices_are_told_is_said(tmp_path):
    own = tmp_path / "mine.csv"
    header = next(line for line in TABLE.read_text().splitlines() if not line.startswith("#"))
    own.write_text(f"# as of: 2030-01\n{header}\nml.c9.large,2,0,,4,10,0.5\n")
    table = read_instances(own).with_prices(["ml.p4d.24xlarge=30"])
    whose = f"on-demand prices in us-east-1 as of {read_instances().as_of}"
    assert describe_cost(SPEC, read_instances(), 3600, spot=False).endswith(f"{whose}, storage not counted")
    said = describe_cost(SPEC, table, 3600, spot=False)
    assert f"{whose}, but those in mine.csv as of 2030-01, but --price ml.p4d.24xlarge=30" in said
