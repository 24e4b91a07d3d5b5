"""Groups of dataset transformations. The names are TensorFlow's, without versions."""

FUNCTIONS = ("MapDataset", "ParallelMapDataset")
"""Transformations that turn each element into one other element, by a function."""
BATCHES = ("BatchDataset", "ParallelBatchDataset", "PaddedBatchDataset")
REGROUPING = (*BATCHES, "RebatchDataset", "MapAndBatchDataset")
PASSING = ("PrefetchDataset", "OptionsDataset", "CacheDataset", "AssertCardinalityDataset")
"""Transformations that yield the elements of their input, unchanged and in the same order."""
ONE_TO_ONE = (*FUNCTIONS, *PASSING, "ShuffleDataset", "ParseExampleDataset")
ONE_BY_ONE = (*ONE_TO_ONE, "FilterDataset", "IgnoreErrorsDataset", "RepeatDataset")
"""Transformations that treat each element by itself, without regard to its neighbours."""
EXPANDING = ("InterleaveDataset", "ParallelInterleaveDataset", "LegacyParallelInterleaveDataset", "FlatMapDataset",
             "UnbatchDataset")  # fmt: skip
"""Transformations that turn each element into a dataset, and yield the elements of these datasets."""
SPLITTABLE = (*ONE_BY_ONE, *EXPANDING, *REGROUPING)
"""Transformations that give the right elements if several processes run them, each on a part of the input."""
BY_PLACE = ("ZipDataset", "TakeDataset", "SkipDataset", "ShardDataset", "WindowDataset", "ScanDataset",
            "UniqueDataset", "TakeWhileDataset", "GroupByWindowDataset", "DirectedInterleaveDataset")  # fmt: skip
"""Transformations whose result depends on the elements' places in the dataset."""
SOURCES = ("RangeDataset", "TensorSliceDataset", "TensorDataset", "ListDataset", "CSVDataset", "TextLineDataset",
           "TFRecordDataset", "FixedLengthRecordDataset", "SparseTensorSliceDataset")  # fmt: skip
