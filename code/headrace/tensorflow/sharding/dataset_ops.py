"""Groups of transformations, by TensorFlow's names without versions."""

FUNCTIONS = ("MapDataset", "ParallelMapDataset")
"""Transformations that make one element of each element, by a function."""
BATCHES = ("BatchDataset", "ParallelBatchDataset", "PaddedBatchDataset")
REGROUPING = (*BATCHES, "RebatchDataset", "MapAndBatchDataset")
PASSING = ("PrefetchDataset", "OptionsDataset", "CacheDataset", "AssertCardinalityDataset")
"""Transformations that hand on their input's elements, in the same order."""
ONE_TO_ONE = (*FUNCTIONS, *PASSING, "ShuffleDataset", "ParseExampleDataset")
ONE_BY_ONE = (*ONE_TO_ONE, "FilterDataset", "IgnoreErrorsDataset", "RepeatDataset")
"""Transformations that treat each element by itself, whatever its neighbours are."""
EXPANDING = ("InterleaveDataset", "ParallelInterleaveDataset", "LegacyParallelInterleaveDataset", "FlatMapDataset",
             "UnbatchDataset")  # fmt: skip
"""Transformations that make a dataset of each element."""
BY_PLACE = ("ZipDataset", "TakeDataset", "SkipDataset", "ShardDataset", "WindowDataset", "ScanDataset",
            "UniqueDataset", "TakeWhileDataset", "GroupByWindowDataset", "DirectedInterleaveDataset")  # fmt: skip
"""Transformations that depend on where an element stands."""
SOURCES = ("RangeDataset", "TensorSliceDataset", "TensorDataset", "ListDataset", "CSVDataset", "TextLineDataset",
           "TFRecordDataset", "FixedLengthRecordDataset", "SparseTensorSliceDataset")  # fmt: skip
