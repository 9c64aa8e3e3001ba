"""Batches from servers of the Go package dataloader, for PyTorch and NumPy: paste this file into your project.

    batches = Batches("http://127.0.0.1:8080", tag=checkpoint.get("tag"))
    loader = torch.utils.data.DataLoader(
        batches, batch_size=None, sampler=range(step + rank, end, ranks), num_workers=2)
    for step, batch in enumerate(loader, step // ranks):  # batch is a list of tensors, one for each array of encode
        ...

The server is Example_servedBatches of served_test.go. batches.steps is the number of steps in an epoch, so
end is epochs * batches.steps. A checkpoint has the step and batches.tag, and the sampler begins at the step: that is the
resume. Let step be a multiple of ranks, and end - step too, so that all ranks take equal steps. (DistributedSampler
shuffles, and cannot begin at a step.) Without worker processes threads are faster, and need only NumPy:

    for arrays in ahead(batches, range(step + rank, end, ranks), threads=2):
        ...

A batch that the servers cannot make is a BadBatch. To skip it, begin again behind it. Every other error means that no
batch can be had now: end the training, and resume it later. There is no authentication, and by https only what
http.client checks.

    python3 testdata/recipes/served.py http://127.0.0.1:8080 0 100

prints a checksum of each array of steps 0 to 99, by both ways if torch is installed.
"""

import collections
import concurrent.futures
import http.client
import io
import os
import sys
import threading
import time
import urllib.parse
import zlib

import numpy


class BadBatch(Exception):
    """The servers cannot make a batch."""


class Refused(Exception):
    """The servers have another order or version, or no such step. To ask again does not help."""


_here = threading.local()  # a connection for each thread; a pickled Batches has none


class Batches:
    """The batches of a training by their step, as a map-style Dataset. It is safe for threads and processes.

    An attempt fails if the server is silent for timeout seconds. There are ten attempts, with pauses of pause, 2 * pause,
    … seconds before the others, 45 in all, in which a server can start anew. Each has a new connection, which may lead
    to another server. tag is that of a checkpoint; None takes the one that the servers have.
    """

    def __init__(self, url, tag=None, timeout=60, pause=1):
        self.url, self.tag, self.timeout, self.pause = url.rstrip("/"), tag, timeout, pause
        tag, body = self._get("/ready")
        self.tag, self.steps = tag, int(body)

    def __getitem__(self, step):
        _, body = self._get(f"/batch/{step}")
        return list(arrays(body))

    def _get(self, path):
        for attempt in range(10):
            time.sleep(self.pause * attempt)
            try:
                return self._try(path)
            except (BadBatch, OSError, http.client.HTTPException) as err:
                if attempt == 9 or attempt == 2 and isinstance(err, BadBatch):
                    raise
            _here.__dict__.clear()  # the connection, which is of no use

    def _try(self, path):
        url = urllib.parse.urlsplit(self.url)
        key = os.getpid(), self.url  # a process that was forked shares its parent's connections: it must not use them
        if getattr(_here, "key", None) != key:
            kind = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}[url.scheme]
            _here.key, _here.connection = key, kind(url.netloc, timeout=self.timeout)
        _here.connection.request("GET", url.path + path, headers={"Batch-Tag": self.tag} if self.tag else {})
        response = _here.connection.getresponse()
        if response.length is None:
            raise http.client.HTTPException(f"{path}: {response.status} {response.reason}, without a length")
        body = bytearray(response.length)  # of its own, so the arrays may be written
        length = response.readinto(body)
        if length < len(body):
            raise http.client.IncompleteRead(body[:length], len(body) - length)
        tag = response.headers.get("Batch-Tag")
        text = f"{path}: {response.status} {response.reason}: {body[:1000].decode(errors='replace')}"
        if tag and 400 <= response.status < 500:
            raise Refused(text)
        if not tag or self.tag and tag != self.tag:
            raise http.client.HTTPException("no server of batches: " + text)
        if response.status == 500:
            raise BadBatch(text)
        if response.status != 200:
            raise http.client.HTTPException(text)
        return tag, body


def arrays(body):
    """Yields the arrays that stand in body one after the other. They share its memory."""
    begin = 0
    while begin < len(body):
        head = io.BytesIO(body[begin : begin + 10 + int.from_bytes(body[begin + 8 : begin + 10], "little")])
        if numpy.lib.format.read_magic(head) != (1, 0):
            raise ValueError("no array of version 1.0")
        shape, _, dtype = numpy.lib.format.read_array_header_1_0(head)
        begin += head.tell()
        array = numpy.frombuffer(body, dtype, int(numpy.prod(shape)), begin).reshape(shape)
        begin += array.nbytes
        yield array.astype(dtype.newbyteorder("="), copy=False)  # torch takes the machine's own byte order only


def ahead(batches, steps, threads=2):
    """Yields the batches of steps in order. Threads get them, and are up to two batches each ahead of the loop."""
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    waiting = collections.deque()
    try:
        for step in steps:
            waiting.append(pool.submit(batches.__getitem__, step))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def main(url, begin, end, pause=1):
    batches, steps = Batches(url, pause=float(pause)), range(int(begin), int(end))
    ways = {"threads": ahead(batches, steps)}
    try:
        import torch

        ways["torch"] = torch.utils.data.DataLoader(batches, batch_size=None, sampler=steps, num_workers=2)
    except ImportError:
        pass
    for way, loader in ways.items():
        for step, batch in zip(steps, loader, strict=True):
            sums = (f"{a.dtype.name} {a.shape} {zlib.crc32(a.tobytes()):08x}" for a in map(numpy.asarray, batch))
            print(way, step, *sums)


if __name__ == "__main__":
    main(*sys.argv[1:])
