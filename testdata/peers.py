"""Measures Python's loaders, for the tables in speed.md and in README.md.

    pip install torch torchvision torchdata webdataset Pillow numpy
    pip install simplejpeg opencv-python-headless
    pip install tensorflow-cpu mlx-data    (compiled loaders; large, so they are not needed for the other rows)
    python3 testdata/peers.py

A row whose package is not installed says so. The last column names the benchmark of this package that does the same work:
run both in turn, on a machine that does nothing else. Each figure is the median of several rounds, after a round that
does not count. All data are made here. The whole takes about a minute.
"""

import importlib.metadata
import io
import itertools
import math
import os
import random
import statistics
import tempfile
import time


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


def median(run, rounds=7):
    """Returns the median time of a call of run, in seconds."""
    run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def drain(iterable):
    for _ in iterable:
        pass


def duration(seconds):
    for unit, size in ("s", 1), ("ms", 1e-3), ("µs", 1e-6):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def rows_of_memory():
    """60,000 rows of 784 float32 from memory, shuffled, in batches of 64"""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    n = 60_000
    data = TensorDataset(torch.arange(n * 784, dtype=torch.float32).reshape(n, 784))
    inline, workers = (
        median(lambda: drain(DataLoader(data, batch_size=64, shuffle=True, num_workers=w)), rounds=3) / n
        for w in (0, 2)
    )
    return f"`DataLoader`: {duration(inline)} a row; with 2 workers {duration(workers)}"


def rows_at_once():
    """the same, with a data set that has __getitems__"""
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)
    n = 60_000
    rows = torch.arange(n * 784, dtype=torch.float32).reshape(n, 784)

    class Rows(Dataset):
        def __len__(self):
            return n

        def __getitems__(self, indices):
            return rows[indices]

    loader = DataLoader(Rows(), batch_size=64, shuffle=True, collate_fn=lambda batch: batch)
    return f"`__getitems__`: {duration(median(lambda: drain(loader), rounds=3) / n)} a row"


def tensorflow():
    """Imports TensorFlow without its messages, on the CPU."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import tensorflow

    return tensorflow


def rows_by_tf():
    """the same, by tf.data: a permutation of the indices, and a gather of each batch"""
    tf = tensorflow()
    n = 60_000
    rows = tf.reshape(tf.range(n * 784, dtype=tf.float32), (n, 784))

    def epoch(parallel):
        indices = tf.data.Dataset.from_tensor_slices(tf.random.shuffle(tf.range(n)))
        return indices.batch(64).map(lambda batch: tf.gather(rows, batch), num_parallel_calls=parallel)

    inline, parallel = (duration(median(lambda: drain(epoch(p)), rounds=3) / n) for p in (None, 2))
    return f"tf.data: {inline} a row; 2 in parallel {parallel}"


def rows_by_mlx():
    """the same, by mlx-data"""
    import mlx.data
    import numpy

    n = 60_000
    rows = numpy.arange(n * 784, dtype=numpy.float32).reshape(n, 784)
    buffer = mlx.data.buffer_from_vector([{"row": row} for row in rows])
    inline = median(lambda: drain(buffer.shuffle().batch(64)), rounds=3) / n
    ahead = median(lambda: drain(buffer.shuffle().to_stream().batch(64).prefetch(4, 2)), rounds=3) / n
    return f"mlx-data: {duration(inline)} a row; with 2 threads {duration(ahead)}"


def shuffle_by_tf():
    """Shuffle(10,000) of a stream of numbers, by tf.data"""
    tf = tensorflow()
    n = 200_000

    def epoch(shuffled):  # in batches, because Python would take most of the time
        numbers = tf.data.Dataset.range(n)
        return (numbers.shuffle(10_000) if shuffled else numbers).batch(1000)

    added = median(lambda: drain(epoch(True))) - median(lambda: drain(epoch(False)))
    return f"tf.data: {duration(added / n)} an item"


def shuffle_by_mlx():
    """the same, by mlx-data"""
    import mlx.data

    n = 200_000
    numbers = mlx.data.buffer_from_vector([{"x": i} for i in range(n)])

    def epoch(shuffled):
        stream = numbers.to_stream()
        return (stream.shuffle(10_000) if shuffled else stream).batch(1000)

    added = median(lambda: drain(epoch(True)), rounds=3) - median(lambda: drain(epoch(False)), rounds=3)
    return f"mlx-data: {duration(added / n)} an item"


def resume():
    """resume at batch 10,000, each of 64, of a shuffle of 1,281,167"""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader():
        return StatefulDataLoader(range(1_281_167), batch_size=64, shuffle=True)

    saved = loader()
    drain(itertools.islice(saved, 10_000))
    state = saved.state_dict()

    def first_batch():
        resumed = loader()
        resumed.load_state_dict(state)
        next(iter(resumed))

    return f"`StatefulDataLoader`: {duration(median(first_batch))}"


def weighted_draw(n, count, replacement):
    """Returns the time of a draw, from the start of an epoch on, as in BenchmarkRandom of bench_test.go."""
    import torch
    from torch.utils.data import WeightedRandomSampler

    sampler = WeightedRandomSampler(torch.empty(n, dtype=torch.float64).exponential_(), count, replacement)
    return duration(median(lambda: drain(sampler)) / count)


def with_replacement():
    """draws by weight with replacement, 10⁴ and 10⁶ of as many"""
    few, many = (weighted_draw(n, n, True) for n in (10_000, 1_000_000))
    return f"`WeightedRandomSampler`: {few} and {many} a draw"


def half_without_replacement():
    """draws by weight without replacement, half of 10⁴ and of 10⁶"""
    few, many = (weighted_draw(n, n // 2, False) for n in (10_000, 1_000_000))
    return f"`WeightedRandomSampler`: {few} and {many} a draw"


def few_without_replacement():
    """draws by weight without replacement, 500 of 10⁴ and of 10⁶"""
    few, many = (weighted_draw(n, 500, False) for n in (10_000, 1_000_000))
    return f"`WeightedRandomSampler`: {few} and {many} a draw"


def map_stage():
    """one stage that maps, inline and with 2 workers"""
    from torchdata.nodes import IterableWrapper, Mapper, ParallelMapper

    def added(n, stage):  # what the stage adds to an item of its source
        source = median(lambda: drain(IterableWrapper(range(n))))
        return (median(lambda: drain(stage(IterableWrapper(range(n))))) - source) / n

    inline = added(100_000, lambda source: Mapper(source, abs))
    threads = added(10_000, lambda source: ParallelMapper(source, abs, num_workers=2, method="thread"))
    return f"torchdata.nodes: {duration(inline)} and {duration(threads)} an item"


def mixture():
    """a mixture of 2, 100 and 1,000 sources by weight"""
    from torchdata.nodes import IterableWrapper, MultiNodeWeightedSampler

    def item(sources, n=100_000):
        nodes = {str(k): IterableWrapper(range(n // sources)) for k in range(sources)}
        return duration(median(lambda: drain(MultiNodeWeightedSampler(nodes, {key: 1.0 for key in nodes}))) / n)

    return f"torchdata.nodes: {item(2)}, {item(100)} and {item(1000)} an item"


def mixture_by_tf():
    """the same of 2 and 100 sources, by tf.data: choose_from_datasets, with draws of many at a time"""
    tf = tensorflow()
    n = 50_000

    def item(count):
        def epoch():
            sources = [tf.data.Dataset.range(n).repeat() for _ in range(count)]
            draws = tf.data.Dataset.from_tensor_slices(tf.random.uniform((n,), 0, count, tf.int64))
            return tf.data.Dataset.choose_from_datasets(sources, draws).batch(1000)

        return duration(median(lambda: drain(epoch()), rounds=3) / n)

    return f"tf.data: {item(2)} and {item(100)} an item"


def packing():
    """texts of up to 599 tokens, packed into rows of 1,024, in batches of 16: row-wise and batch-wise"""
    import numpy

    n, length, size = 12_000, 1024, 16
    tokens = numpy.ones(300 * n, numpy.int32)
    texts = [tokens[299 * i : 299 * i + i % 600] for i in range(n)]
    random.shuffle(texts)

    def rows():
        row, filled = numpy.empty(length, numpy.int32), 0
        for text in texts:
            while len(text):
                part = text[: length - filled]
                row[filled : filled + len(part)] = part
                filled, text = filled + len(part), text[len(part) :]
                if filled == length:
                    yield row
                    row, filled = numpy.empty(length, numpy.int32), 0

    def by_rows():
        packed = rows()
        while batch := list(itertools.islice(packed, size)):
            yield numpy.stack(batch)

    def by_batches():
        parts, count = [], 0
        for text in texts:
            parts.append(text)
            count += len(text)
            if count >= size * length:
                joined = numpy.concatenate(parts)
                yield joined[: size * length].reshape(size, length)
                parts, count = [joined[size * length :]], count - size * length

    rowwise, batchwise = (duration(median(lambda: drain(pack())) / sum(map(len, texts))) for pack in (by_rows, by_batches))
    return f"NumPy: row-wise {rowwise} a token, batch-wise {batchwise}"


def tar_shards():
    """four shards that webdataset wrote, 4 KB files"""
    import webdataset

    n = 20_000
    with tempfile.TemporaryDirectory() as folder:
        names = [os.path.join(folder, f"{s:03d}.tar") for s in range(4)]
        for s, name in enumerate(names):
            with webdataset.TarWriter(name) as shard:
                for i in range(s, n, len(names)):
                    shard.write({"__key__": f"{i:08d}", "bin": random.randbytes(4096), "cls": b"%03d" % (i % 1000)})
        seconds = median(lambda: drain(webdataset.WebDataset(names, shardshuffle=False)), rounds=3)
    return f"webdataset: {n / seconds:,.0f} records/s"


def jpeg_files():
    """Returns JPEG files of 500 × 375 pixels."""
    from PIL import Image

    width, height, files = 500, 375, []
    for f in range(16):  # waves, and noise, as in jpegFiles of recipes/bench_test.go
        columns = [80 * math.sin(x / (9 + f)) for x in range(width)]
        lines = [math.cos(y / 23) for y in range(height)]
        luma = bytes(int(110 + c * l + random.randrange(24)) for l in lines for c in columns)
        blue = bytes(y // 2 for y in range(height) for _ in range(width))
        red = bytes(x // 2 for _ in range(height) for x in range(width))
        planes = [Image.frombytes("L", (width, height), plane) for plane in (luma, blue, red)]
        file = io.BytesIO()
        Image.merge("YCbCr", planes).save(file, "JPEG", quality=85, subsampling="4:2:0")
        files.append(file.getvalue())
    return files


def images():
    """JPEG files of 500 × 375, decoding alone, one core"""
    from PIL import Image

    files = jpeg_files()

    def decode():
        for file in files:
            Image.open(io.BytesIO(file)).load()

    size = sum(map(len, files)) / len(files) / 1000
    return f"Pillow: {len(files) / median(decode):,.0f} images/s, of {size:.0f} KB"


def files_by_tf():
    """the same files, by tf.data: only the part is decoded, scaled, mirrored and normalised, one thread"""
    tf = tensorflow()
    files = jpeg_files() * 8
    mean, std = tf.constant(MEAN) * 255, tf.constant(STD) * 255

    def sample(file):
        shape = tf.image.extract_jpeg_shape(file)
        whole = tf.constant([[[0.0, 0, 1, 1]]])
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape, whole, aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1), use_image_if_no_bounding_boxes=True
        )
        part = tf.image.decode_and_crop_jpeg(file, tf.concat([begin[:2], size[:2]], 0), channels=3)
        part = tf.image.random_flip_left_right(tf.image.resize(part, (224, 224)))
        return (part - mean) / std

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    data = tf.data.Dataset.from_tensor_slices(files).map(sample).batch(32).with_options(options)
    return f"tf.data: {duration(median(lambda: drain(data), rounds=3) / len(files))} a file"


def recipe():
    """Returns what makes a sample for training of a photograph of Pillow's."""
    import torch
    from torchvision import transforms

    torch.set_num_threads(1)
    return transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ])


def augmentation():
    """photographs of 500 × 375, decoded: a random part of each, scaled, mirrored and normalised, one core"""
    from PIL import Image

    augment = recipe()
    photos = [Image.open(io.BytesIO(file)).convert("RGB") for file in jpeg_files()] * 4
    return f"torchvision: {duration(median(lambda: drain(map(augment, photos))) / len(photos))} a photograph"


def files_by_torchvision():
    """JPEG files of 500 × 375 to batches of 32: a random part, scaled, mirrored and normalised, one core"""
    import torch
    from PIL import Image

    augment = recipe()
    files = jpeg_files() * 2

    def batch():
        torch.stack([augment(Image.open(io.BytesIO(file)).convert("RGB")) for file in files])

    return f"Pillow and torchvision: {duration(median(batch) / len(files))} a file"


def random_part(width, height):
    """Returns the left, top, width and height that RandomResizedCrop draws, but for the rare part that does not fit."""
    while True:
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h


def files_by_simplejpeg():
    """the same files, by simplejpeg and OpenCV"""
    import cv2
    import numpy
    import simplejpeg

    cv2.setNumThreads(0)
    files = jpeg_files() * 2
    batch = numpy.empty((len(files), 3, 224, 224), numpy.float32)

    def fill():
        for file, sample in zip(files, batch):
            photo = simplejpeg.decode_jpeg(file, "RGB")
            left, top, width, height = random_part(photo.shape[1], photo.shape[0])
            photo = cv2.resize(photo[top : top + height, left : left + width], (224, 224))
            if random.random() < 0.5:
                photo = cv2.flip(photo, 1)
            for plane, mean, std, dst in zip(cv2.split(photo), MEAN, STD, sample):  # the fastest of four ways
                numpy.multiply(plane, numpy.float32(1 / 255 / std), out=dst)
                dst -= numpy.float32(mean / std)

    return f"simplejpeg and OpenCV: {duration(median(fill) / len(files))} a file"


def main():
    print("| | Python | `go test -run '^$' -bench` |\n|---|---|---|")
    for measure, benchmark in (
        (rows_of_memory, "Rows/workers"),
        (rows_at_once, "Rows/workers"),
        (rows_by_tf, "Rows/workers"),
        (rows_by_mlx, "Rows/workers"),
        (shuffle_by_tf, "Streams/Shuffle"),
        (shuffle_by_mlx, "Streams/Shuffle"),
        (resume, "Start/resumed"),
        (with_replacement, "Random/replace"),
        (half_without_replacement, "Random/half"),
        (few_without_replacement, "Random/few"),
        (map_stage, "Streams/Map"),
        (mixture, "Streams/Mix"),
        (mixture_by_tf, "Streams/Mix"),
        (packing, "Packing"),
        (tar_shards, "Tar/PAX/stream"),
        (images, "Images/image-jpeg"),
        (augmentation, "Images/recipe"),
        (files_by_torchvision, "Images/image-jpeg"),
        (files_by_simplejpeg, "Images/image-jpeg"),
        (files_by_tf, "Images/image-jpeg"),
    ):
        try:
            figures = measure()
        except ImportError as missing:
            figures = f"not measured: {missing}"
        print(f"| {measure.__doc__} | {figures} | `{benchmark}` |", flush=True)
    print()
    for package in (
        "torch", "torchvision", "torchdata", "webdataset", "Pillow", "simplejpeg", "opencv-python-headless", "numpy",
        "tensorflow-cpu", "mlx-data",
    ):
        try:
            print(package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            print(package, "is not installed")


if __name__ == "__main__":
    main()
