"""A process as it is before its script has made a loader."""

from headrace.torch import rank_changes, registry


def forget_loaders():
    """All that this process has made; forked processes have what those before them made."""
    registry.Serving.made = registry.Serving.shared = 0
    registry.Serving.begun = False
    registry._used.clear()
    registry._places.clear()
    registry._first_places.clear()
    registry._before_first_batch.clear()
    registry._told.clear()
    rank_changes.forget()
