"""Several trainings of a script may share a checkpoint folder. Messages say what happens to the checkpoints in it."""

import shutil

from headrace.training.checkpoint_folder import CheckpointFolder


def save(folder, epoch):
    return folder.save(epoch, 0, lambda path: path.write_text("weights"), {})


def test_going_on_from_another_training_of_the_same_script_is_told(tmp_path, capsys):
    first = CheckpointFolder(tmp_path, "weights", 3)
    save(first, 1)
    first.tell_of_own()
    assert capsys.readouterr().out == ""
    CheckpointFolder(tmp_path, "weights", 3).tell_of_own()
    assert "epoch-0001 was saved by an earlier training of this script" in capsys.readouterr().out


def test_a_checkpoint_that_is_not_kept_since_there_are_those_of_later_epochs_is_told(tmp_path, capsys):
    folder = CheckpointFolder(tmp_path, "weights", 2)
    for epoch in (4, 5, 6):
        save(folder, epoch)
    assert capsys.readouterr().out == ""
    assert not save(folder, 1).exists()
    assert "epoch-0001 is not kept" in capsys.readouterr().out
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["epoch-0005", "epoch-0006"]


def test_copies_that_a_user_makes_of_checkpoints_are_left_alone(tmp_path):
    folder = CheckpointFolder(tmp_path, "weights", 1)
    for epoch in (1, 2):
        save(folder, epoch)
        shutil.copytree(tmp_path / f"epoch-{epoch:04d}", tmp_path / f"epoch-{epoch:04d}-copy")
    assert folder.place() == (2, 0)
    folder.save(2, 30, lambda path: path.write_text("weights"), {})
    assert folder.place() == (2, 30)
    names = [path.name for path in sorted(tmp_path.iterdir())]
    assert names == ["epoch-0001-copy", "epoch-0002-copy", "epoch-0002-step-000030"]
