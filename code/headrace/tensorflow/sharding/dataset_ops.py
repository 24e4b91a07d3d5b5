"""Kinds of transformations, by TensorFlow's names for them, without versions."""

FUNCTIONS = ("MapDataset", "ParallelMapDataset")
"""One element out for each element in."""
BATCHES = ("BatchDataset", "ParallelBatchDataset", "PaddedBatchDataset")
REGROUPING = (*BATCHES, "RebatchDataset", "MapAndBatchDataset")
PASSING = ("PrefetchDataset", "OptionsDataset", "CacheDataset", "AssertCardinalityDataset")
"""What hands its input's elements on, in their order."""
ONE_TO_ONE = (*FUNCTIONS, *PASSING, "ShuffleDataset", "ParseExampleDataset")
ONE_BY_ONE = (*ONE_TO_ONE, "FilterDataset", "IgnoreErrorsDataset", "RepeatDataset")
"""What treats elements one by one, whatever stands beside them."""
EXPANDING = ("InterleaveDataset", "ParallelInterleaveDataset", "LegacyParallelInterleaveDataset", "FlatMapDataset",
             "UnbatchDataset")  # fmt: skip
"""What makes a dataset of each element."""
BY_PLACE = ("ZipDataset", "TakeDataset", "SkipDataset", "ShardDataset", "WindowDataset", "ScanDataset",
            "UniqueDataset", "TakeWhileDataset", "GroupByWindowDataset", "DirectedInterleaveDataset")  # fmt: skip
"""What looks at where an element stands."""
SOURCES = ("RangeDataset", "TensorSliceDataset", "TensorDataset", "ListDataset", "CSVDataset", "TextLineDataset",
           "TFRecordDataset", "FixedLengthRecordDataset", "SparseTensorSliceDataset")  # fmt: skip
