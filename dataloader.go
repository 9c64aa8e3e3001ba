// Package dataloader loads samples for machine learning: shuffled, in batches, by several goroutines at once, in an
// order that depends only on a seed and the epoch. It is PyTorch's DataLoader for Go. (It is not the batcher of GraphQL
// queries that has the same name.)
//
//	images := dataloader.Func(60000, func(ctx context.Context, i int) (dataloader.Tensor[float32], error) {
//		return decode(i)
//	})
//	loader, err := dataloader.New(images, dataloader.Stack[float32], dataloader.Options{
//		BatchSize: 64, Shuffle: true, Workers: 4,
//	})
//	if err != nil {
//		return err
//	}
//	var at dataloader.Cursor // or a saved one: the loop continues there
//	for at.Epoch < 10 {
//		for batch, err := range loader.Run(ctx, &at) {
//			if err != nil {
//				return err
//			}
//			train(batch) // a Tensor of the shape [64, …]
//			save(at)     // as JSON: the checkpoint
//			loader.Recycle(batch)
//		}
//	}
//
// The rest of this comment explains how the package works. It starts from a loop that anybody would write. Then each
// section answers one question. Most end with a prediction to make, a command that shows the answer, to be run in the
// package's folder, and names to read afterwards. "go doc -u -src engine.loop", for example, prints a name that is not
// exported. Examples are in dataloader_test.go.
//
// # A loop of ten lines
//
//	order := rng.Perm(n)
//	for len(order) > 0 {
//		k := min(batchSize, len(order))
//		var samples []Sample
//		for _, i := range order[:k] {
//			samples = append(samples, load(i))
//		}
//		order = order[k:]
//		train(stack(samples))
//	}
//
// The loop makes three decisions: what sample i is, in which order samples come, and how samples become a batch. In
// this package each decision is a type.
//
// # The data set
//
// What is sample i? A [Dataset] has a length and fetches sample i (PyTorch: Dataset, __len__ and __getitem__). [Slice] is
// a data set, and [Func], [Files] and [Rows] make others. [Transform], [Cache], [Subset] and [Concat] make data sets from
// others. Any sample may be fetched at any time, by several goroutines at once.
//
//   - Predict: 20 goroutines ask a Cache for the same sample, which takes a second. How often is it fetched?
//   - Run: go test -v -run TestCache$
//   - Read: Dataset, Func and Cache
//
// # The sampler
//
// Which sample stands at a position of an epoch? A [Sampler] says it (PyTorch: Sampler). In the loop above the order is a
// table, which depends on everything that was drawn from rng before. Here the order is a function of epoch and position
// alone. [Random] computes the index at any position of a permutation of any length, and needs a table only for short ones.
//
//   - Predict: a data set has 10¹² samples. How long does the first batch of a shuffled epoch take, and how long a batch in
//     the middle?
//   - Run: go test -run ^$ -bench Start
//   - Read: Sampler, Random, permutation, feistel and feistel.at
//
// # The batch
//
// How do samples become a batch? A [Collate] makes one (PyTorch: collate_fn). [Stack] copies tensors of one shape into a
// tensor with one more dimension, [Pad] makes sequences equally long, [List] keeps a slice. Like append, a Collate may
// reuse memory: [DataLoader.Recycle] gives a batch back. [NewFunc] makes a batch in one call, without samples.
//
//   - Predict: 3 workers make 20 batches, at most 6 ahead of the loop, which recycles each. In how many places of memory?
//   - Run: go test -v -run TestRecycle
//   - Read: Collate, Stack and fetcher
//
// # One goroutine
//
// Who loads? With Options.Workers = 0 the loop's own goroutine loads each batch when the loop asks for it. This is the
// first version of a loader (PyTorch: _SingleProcessDataLoaderIter), and the specification of the others: any number of
// workers gives the same batches, errors and random numbers, in the same order, sooner.
//
//   - Predict: 20 samples take 0.1 s each. How long do they take with 0 workers, with 1, with 4, with 100?
//   - Run: go test -v -run TestWallTime
//   - Read: job and engine.inline
//
// # Several goroutines, out of order
//
// How can a worker never block when it sends? Workers are goroutines. They take tasks, which are the numbers of batches,
// from one queue and put results into another, while the loop trains. If the queue of results had no room, the workers
// would block for ever after a break. A worker could select between its send and a signal to stop. Room in the queue is
// simpler. A batch is in flight from the moment its task is sent until the loop takes it. At most Workers × Prefetch
// batches, the window, are in flight, and each queue has room for a window. So no send ever blocks. With
// Options.Unordered a batch is handed over as soon as it is ready: the second version (PyTorch: in_order=False).
//
//   - Predict: 3 workers send to a channel without room, and the loop breaks after one result. What becomes of them?
//   - Run: go test -v -run TestNaivePool
//   - Read: engine.work
//
// # In order
//
// How can several workers keep the order? By default a batch that is ready too early waits in the reorder cache until its
// turn: the third version (PyTorch: _MultiProcessingDataLoaderIter, with _send_idx, _rcvd_idx and _task_info). Two
// counters, send and recv, describe what is in flight:
//
//	recv <= send <= recv + window
//
//	batch    0 1 2 3 4 5 6 7 8 9 …
//	             ^           ^
//	             recv        send     2 is slow, in a worker; 3, 4 and 6 are in the cache; 5 and 7 in other workers
//
// Each batch from recv to send-1 is in one place: the queue of tasks, a worker, the queue of results, or the cache. So at
// most window batches take memory, even if batch 2 never comes; out of order, too. Example_inFiftyLines is this loader
// and nothing else. The package's own, the type engine, also reuses slots, reads streams, stops its workers by a context,
// and survives panics. The picture in the README, and testdata/timeline.txt, show the same batches without workers, with
// one, and with three, out of order and in order. The mark at 135 ms in that picture shows the moment above.
//
//   - Predict: batch 0 of 20 hangs, with 2 workers and Prefetch 2. How many others are loaded, in order and out of order?
//   - Run: go test -v -run TestStuckBatch
//   - Read: Example_inFiftyLines, then engine and engine.loop
//
// # Random numbers
//
// Why not a generator for each worker? The workers share a queue, so which worker loads sample 4 depends on how long the
// other samples take. Its augmentation would differ from run to run. [Rand] gives each sample a generator of its own, which
// depends only on the seed, the epoch and the position.
//
//   - Predict: each of 3 workers has a generator of its own. Does sample 4 get the same number in five runs?
//   - Run: go test -v -run TestGeneratorPerWorker
//   - Read: Rand and scope
//
// # Errors and breaks
//
// How does the loop hear of a bad sample? At the batch's turn it gets an error, a [*SampleError]. The SampleError says
// which batch failed; its Err is the cause, such as the error of Get or a [PanicError]. The loop may go on with the next
// batch. Every other error is the last: the context has ended, the cursor does not fit, or Trace has panicked. A loop
// that skips bad batches tells the two apart:
//
//	for batch, err := range loader.Run(ctx, &at) {
//		if bad := (*dataloader.SampleError)(nil); errors.As(err, &bad) {
//			log.Print(bad)
//			continue
//		} else if err != nil {
//			return err
//		}
//		train(batch)
//	}
//
// Options.OnError drops a bad sample from its batch instead:
//
//	if Get                  without OnError             with OnError
//	returns an error        the batch fails             OnError decides
//	panics                  the batch fails             OnError decides
//	calls runtime.Goexit    the batch fails             OnError decides
//	is waiting as ctx ends  the loop ends               the loop ends
//
// Goexit is the one exception to the specification: with 0 workers it ends the caller's goroutine.
//
// Goroutines live only inside the range. Leaving it in any way ends the context that each Get was given, and waits until
// every Get has returned. A loader and a stream have nothing to close.
//
//   - Predict: the loop breaks while a Get runs that takes an hour. When does the loop end, if the Get looks at its context,
//     and if it does not?
//   - Run: go test -v -run TestBreakWaits
//   - Read: SampleError, fetcher.fetch, and engine.run from its defers on
//
// # Cursors and checkpoints
//
// What must be saved to continue? A loader has no position; a [Cursor] has. The caller owns it, and Run keeps it current:
// the epoch, the position after the batch in hand, and a description of the order with its seed, so that a loader with
// another order refuses it. Saved as JSON it is the checkpoint; passed to Run it is the resume, for any number of workers
// (PyTorch: StatefulDataLoader):
//
//	{"epoch": 1, "pos": 128, "state": {"by": "Random(60000, seed 42)", "seed": 42}}
//
// Save the weights and the cursor together, after the step. If the process dies, the next one continues there:
//
//	a batch that                              comes again?
//	was in flight                             yes: it is not in the cursor
//	was trained on before the save            no
//	was trained on after the save             yes: its step is lost with the weights
//	failed, and no later batch succeeded      yes, in the same epoch: the cursor stays before it
//	failed, and a later batch succeeded       no
//
// A batch that comes again has the same random numbers, which depend on the position. A sample that OnError has dropped
// counts as seen.
//
//   - Predict: loops with 0 to 4 workers are left, and continued with others, in order or not. How many samples are lost, and
//     how many come twice?
//   - Run: go test -v -run TestUnorderedResume
//   - Read: Cursor and DataLoader.resume
//
// # Shards and ranks
//
// Who loads what if several machines train one model? Options.Shard gives each rank its part of every epoch: the
// positions Index, Index+Count, … (PyTorch: DistributedSampler). [ShardFromEnv] knows the launchers, and a [Tail] says
// what happens if the epoch cannot be dealt out evenly. All ranks' cursors are equal after the same number of batches, so
// one file is enough. The file resumes any number of ranks: the rest of the epoch is dealt out anew. If ranks × BatchSize
// stays the same, the ranks together also train on the same samples in each step. The cursor of an Unordered loop resumes
// only its own rank, with the same batch size.
//
//   - Predict: ten samples on four ranks, in batches of three. What does each rank get under each Tail?
//   - Run: go test -v -run TestTails
//   - Read: Shard, Tail and deal
//
// # Second reading: streams
//
// How are data without indices loaded? By a [Stream], which is also the way to a pipeline of your own. A Stream is a
// function that takes a cursor and returns the items that follow, each with the cursor after it (PyTorch:
// IterableDataset, torchdata.nodes). [FromSeq], [Indices] and [Tar] make streams. Shuffle, [Mix], [Map], [Batch],
// Prefetch and others make one stream from another. Any composition resumes:
//
//	images := dataloader.Map(dataloader.Indices(dataloader.Random(n, seed)), 8, load)
//	batches := dataloader.Batch(images, 64, dataloader.Stack[float32]).Prefetch(2)
//
// Use a DataLoader if the data have indices. It knows its length, deals out whole batches, and resumes any rank. Use a
// stream for data that can only be read in order, for stages of your own, or if all workers should load samples of one
// batch.
//
//   - Predict: a batch of 16 samples of 1 s each, 8 workers. When does the first batch come from a loader, when from the
//     pipeline above?
//   - Run: go test -v -run TestPipelineIsLoader
//   - Read: Stream, Stream.Take and staged
//
// # Tar shards
//
// How are many small files read fast? They are stored as a few tar archives, called shards, which a disk or a web server
// reads from front to back at full speed (PyTorch: webdataset). [Tar] is the stream of their records; its cursor is a shard
// and a byte offset. [OpenTar] reads records by index, and a [TarWriter] writes them. A shard that is damaged or truncated
// is an error that says where; no sample is lost in silence. Read Tar and readShard.
//
// # Where the time goes
//
// Is the loader too slow? Options.Trace gets a [Timing] for each batch. [Stats] sums them up in one line, which names the
// bottleneck. [Progress] shows how far an epoch has got. In profiles, goroutines have the label dataloader ("worker 0",
// "reader"). In execution traces (go test -trace) each batch of a loader has the regions fetch and collate, or load, and a
// log entry with its number.
//
// # Reading order
//
// Each of the first four files answers one question, first for data with indices, then, after the line "Second reading",
// for streams: what (dataset.go), in which order (sampler.go), in what shape (batch.go), by which goroutine (worker.go).
// Read their first halves, then dataloader.go, then the second halves, then tar.go.
package dataloader

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/trace"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options say how a DataLoader loads. The zero value has PyTorch's defaults: one sample a batch, in order, in the
// calling goroutine.
type Options struct {
	// BatchSize is the number of samples in a batch; 0 means 1. PyTorch: batch_size.
	BatchSize int
	// Shuffle makes the order Random(data.Len(), Seed) instead of Sequential. PyTorch: shuffle.
	Shuffle bool
	// Seed is the seed of Shuffle and of Rand. 0 is a seed like any other. PyTorch: generator.
	Seed uint64
	// DropLast leaves out the last batch if it is not full. PyTorch: drop_last.
	DropLast bool
	// Sampler is the order of the samples. It excludes Shuffle. nil means the order of Shuffle. PyTorch: sampler.
	Sampler Sampler
	// BatchSampler is the order of whole batches. It excludes BatchSize, Shuffle, Sampler and DropLast.
	// PyTorch: batch_sampler.
	BatchSampler BatchSampler

	// Shard is the part of each epoch that this rank loads: the positions Index, Index+Count, … of the order, or the
	// batches of a BatchSampler. The zero value is the whole epoch. PyTorch: DistributedSampler.
	Shard Shard
	// Tail says what happens if the epoch cannot be dealt out evenly. The zero value is PadTail.
	Tail Tail

	// Workers is the number of goroutines that load. With 0 the calling goroutine loads each batch when the loop asks
	// for it. PyTorch: num_workers.
	Workers int
	// Prefetch is the number of batches in flight for each worker; 0 means 2. Workers × Prefetch is the window. Without
	// Workers it must be 0. PyTorch: prefetch_factor.
	Prefetch int
	// Unordered hands over batches as they are ready, so that a slow batch delays no other. Each batch still comes
	// exactly once, also across a resume. PyTorch: in_order=False.
	Unordered bool

	// OnError, if not nil, is asked about each sample that cannot be fetched. If it returns nil, the sample is dropped
	// and its batch is smaller. If it returns an error, the batch fails with that error. A batch whose samples are all
	// dropped is not handed over. An error that belongs to no single sample has Index -1: it is Collate's, GetBatch's, that
	// of NewFunc's load, or the sampler's, such as an index outside the data set. It fails the batch, and OnError is not
	// asked.
	//
	// Have a budget, as in ExampleOptions_onError: if all samples fail, an epoch without batches is no error. What OnError
	// counts is not part of a cursor.
	//
	// OnError runs in the loop's goroutine when the batch is about to be handed over, so the order of its calls does not
	// depend on Workers. Two loops over one loader may call it at the same time.
	OnError func(*SampleError) error
	// Trace, if not nil, is called in the loop's goroutine for each batch, just before it is handed over. A failed batch
	// counts too, and so does a batch whose samples were all dropped; both have 0 Samples. A panic in Trace ends the loop.
	Trace func(Timing)
}

// check returns o with its defaults filled in, or says which field is wrong.
func (o Options) check() (Options, error) {
	prefetch := cmp.Or(o.Prefetch, 2)
	shard, bad := o.Shard.check()
	if bad != nil {
		bad = fmt.Errorf("dataloader: Options.%w", bad)
	}
	bad = cmp.Or(
		errorIf(o.BatchSampler != nil && (o.BatchSize != 0 || o.Shuffle || o.Sampler != nil || o.DropLast),
			"Options.BatchSampler excludes BatchSize (%d), Shuffle (%t), Sampler (%t) and DropLast (%t); leave them unset",
			o.BatchSize, o.Shuffle, o.Sampler != nil, o.DropLast),
		errorIf(o.Sampler != nil && o.Shuffle, "Options.Sampler excludes Shuffle; a shuffling Sampler is Random"),
		errorIf(o.BatchSize < 0, "Options.BatchSize is %d, must be positive, or 0 for 1", o.BatchSize),
		errorIf(o.Workers < 0, "Options.Workers is %d, must not be negative; 0 loads in the calling goroutine", o.Workers),
		errorIf(o.Prefetch < 0, "Options.Prefetch is %d, must be positive, or 0 for 2", o.Prefetch),
		errorIf(o.Prefetch > 0 && o.Workers == 0, "Options.Prefetch is %d without workers; leave it 0 or set Workers", o.Prefetch),
		errorIf(o.Workers > math.MaxInt32/prefetch, "Options.Workers × Prefetch is %d × %d, must be less than 2^31", o.Workers, prefetch),
		errorIf(o.Tail < PadTail || o.Tail > UnevenTail, "Options.Tail is %d, must be PadTail, DropTail or UnevenTail", o.Tail),
		bad)
	o.Shard, o.Prefetch, o.BatchSize = shard, prefetch, cmp.Or(o.BatchSize, 1)
	return o, bad
}

// A DataLoader loads batches of type B. It is safe for concurrent use: several loops over it, nested or in several
// goroutines, do not affect each other, because it keeps no position. PyTorch: DataLoader.
type DataLoader[B any] struct {
	// Set by New and only read afterwards.
	opts    Options
	deal    deal // of a whole epoch
	name    string
	plain   any // the State of a cursor with no step Done, a *loaderState; the cursors share it
	orderOf func(epoch int) order
	newLoad func(ctx context.Context, worker int, p *pass) func(*result[B])

	mu   sync.Mutex // guards free; never held while user code runs
	free []B        // the batches given back by Recycle
	most int        // how many of them can be of use: those in flight, the one in the loop body, and one recycled late
}

// New makes a loader of the samples of data, which collate makes into batches. It is the NewFunc whose load fetches the
// samples one by one and collates them; each sample has its own Rand, and OnError is asked about it. New calls data.Len
// once. Options that make no sense are an error that names the field, its value and what is allowed. An empty data set is
// not an error; it yields no batches.
func New[T, B any](data Dataset[T], collate Collate[T, B], opts Options) (*DataLoader[B], error) {
	err := cmp.Or(errorIf(data == nil, "the data set is nil"), errorIf(collate == nil, "the Collate is nil; List makes a slice of the samples"))
	if err != nil {
		return nil, err
	}
	return loaderOf(data.Len(), opts, func() fill[B] {
		f := &fetcher[T, B]{data: data, begin: beginOf(data), collate: collate}
		return f.fill
	})
}

// NewFunc makes a loader of n samples. The function load makes each batch from the samples with the given indices, in their
// order. It may build the batch in the memory of dst, as append does: dst is a batch that the caller has given back with
// DataLoader.Recycle, or the zero value. So samples that must be read or decoded are written straight into their batch,
// where New would allocate and copy each of them. load must not retain indices, which are reused for the next batch.
//
// With workers load runs in several goroutines at once, on different batches. Rand(ctx) is the generator of the batch. An
// error of load, or a panic, fails the batch, with Index -1; OnError is not asked. Everything else is as in New.
func NewFunc[B any](n int, load func(ctx context.Context, dst B, indices []int) (B, error), opts Options) (*DataLoader[B], error) {
	if err := errorIf(load == nil, "NewFunc: load is nil"); err != nil {
		return nil, err
	}
	whole := func(j *job[B], dst B) (B, error) {
		defer trace.StartRegion(j.ctx, "load").End()
		j.scope.move(j.whole())
		j.samples = len(j.indices)
		return load(j.ctx, dst, j.indices)
	}
	return loaderOf(n, opts, func() fill[B] { return whole })
}

// loaderOf makes the loader of n samples. newFill returns the function that makes batches in one goroutine.
func loaderOf[B any](n int, opts Options, newFill func() fill[B]) (*DataLoader[B], error) {
	opts, err := opts.check()
	err = cmp.Or(err, errorIf(n < 0, "the number of samples is %d, must not be negative", n))
	if err != nil {
		return nil, err
	}
	l := &DataLoader[B]{opts: opts}
	if err := l.setOrder(n); err != nil {
		return nil, err
	}
	l.most = min(opts.Workers*opts.Prefetch, l.Len()) + 2
	l.newLoad = func(ctx context.Context, worker int, p *pass) func(*result[B]) {
		j := &job[B]{pass: p, n: n, onError: opts.OnError != nil, fill: newFill()}
		j.ctx, j.scope = withScope(ctx, worker, opts.Seed, spot{})
		return j.load
	}
	return l, nil
}

// setOrder sets the order of the loader's n samples, and how it is dealt out.
func (l *DataLoader[B]) setOrder(n int) error {
	o := &l.opts
	var positions interface{ Len() int } // of the order
	if o.BatchSampler != nil {
		positions, l.orderOf = o.BatchSampler, recent(batchOrder(o.BatchSampler))
	} else {
		if o.Sampler == nil && o.Shuffle {
			o.Sampler = Random(n, o.Seed)
		} else if o.Sampler == nil {
			o.Sampler = Sequential(n)
		}
		if w, ok := o.Sampler.(weighted); ok && w.samples != n {
			return fmt.Errorf("dataloader: Options.Sampler has %d weights for %d samples; Weighted needs one for each", w.samples, n)
		}
		positions, l.orderOf = o.Sampler, recent(samplerOrder(o.Sampler))
	}
	count := positions.Len()
	if count < 0 || count > math.MaxInt/2 {
		return fmt.Errorf("dataloader: the length of %T is %d, must be 0 to %d", positions, count, math.MaxInt/2)
	}
	if o.DropLast && o.BatchSize > count && count > 0 {
		return fmt.Errorf("dataloader: Options.DropLast leaves no batch: BatchSize is %d, and there are %d samples", o.BatchSize, count)
	}
	size := min(o.BatchSize, count+1) // a larger size means the same, and could overflow
	l.deal = deal{n: count, size: size, shard: o.Shard, tail: o.Tail, dropLast: o.DropLast}.start(0)
	l.name = describe(positions)
	state := &loaderState{By: l.name, Seed: o.Seed}
	if o.Unordered {
		state.Shard, state.Size = &l.deal.shard, size
	}
	l.plain = state
	return nil
}

// Len returns the number of batches in an epoch of this shard.
func (l *DataLoader[B]) Len() int { return l.deal.steps() }

// Epoch returns the batches of one epoch, from its start. The same epoch has the same order again, unless the loader is
// Unordered. With Shuffle each epoch has another order. Errors are those of Run.
func (l *DataLoader[B]) Epoch(ctx context.Context, epoch int) iter.Seq2[B, error] {
	return func(yield func(B, error) bool) { l.Run(ctx, &Cursor{Epoch: epoch})(yield) }
}

// Run returns the batches from *at to the end of its epoch, and keeps *at current. While the loop body has a batch, *at
// is the cursor after that batch, so a checkpoint saved in the body resumes with the next batch. When the loop has ended
// *at is the start of the next epoch. After a break it stays where it is. The caller must not change *at, or pass it to
// another Run, while the loop runs.
//
// If a batch fails, the loop gets a *SampleError, which errors.As finds, and may go on. *at then stays before the failed
// batch, so a checkpoint saved in the body tries that batch again. With the next success, or at the end of the epoch, *at
// moves on.
//
// Any other error ends the loop and leaves *at unchanged. There are three causes: the context has ended (the error is
// context.Cause), the cursor does not fit, or Options.Trace has panicked. When the last batch has been handed over the
// epoch is complete, even if the context ends then. A loop over epochs must end at such an error too, because *at does not
// move. So must a caller of iter.Pull2: the sequence ends after the error, but the epoch is not complete.
//
// A range with one variable loses the errors, and gets a zero batch for each.
func (l *DataLoader[B]) Run(ctx context.Context, at *Cursor) iter.Seq2[B, error] {
	panicIf(l == nil, "Run: the loader is nil; look at the error of New")
	return follow(func(from Cursor) iter.Seq2[Item[B], error] { return l.items(ctx, from) }, at)
}

// At returns the cursor before batch k of an epoch: for a run that was saved with its step number only. k may be Len() and
// more, which means a later epoch, so At(0, step) is the place after step batches of this loader, as long as its options
// are the same. At panics if epoch or k is negative.
func (l *DataLoader[B]) At(epoch, k int) Cursor {
	panicIf(epoch < 0 || k < 0, "At: epoch is %d and k is %d, must not be negative", epoch, k)
	if n := l.Len(); n > 0 {
		panicIf(epoch >= math.MaxInt-k/n, "At: epoch is %d and k is %d, which is too far", epoch, k)
		epoch, k = epoch+k/n, k%n
	}
	if pos := l.deal.after(k); pos > 0 {
		return Cursor{epoch, pos, l.plain}
	}
	return Cursor{Epoch: epoch}
}

// Batch loads batch k of an epoch, 0 <= k < Len(), in the calling goroutine: the batch that a loop over the epoch yields
// at its turn k. Step s of a training is Batch(ctx, s/Len(), s%Len()). It does not disturb loops that are running. It
// asks Options.OnError, and does not call Options.Trace.
func (l *DataLoader[B]) Batch(ctx context.Context, epoch, k int) (B, error) {
	p, err := l.resume(Cursor{Epoch: epoch})
	if err == nil && (k < 0 || k >= p.steps) {
		err = fmt.Errorf("dataloader: batch %d of epoch %d: there are %d batches", k, epoch, p.steps)
	}
	if err != nil {
		return *new(B), err
	}
	b := result[B]{step: k}
	if ctx.Err() == nil {
		l.newLoad(ctx, -1, p)(&b)
	}
	if ctx.Err() != nil {
		return *new(B), context.Cause(ctx)
	}
	l.judge(p, &b)
	if b.err == nil && b.Samples == 0 {
		b.err = p.fault(k, -1, errors.New("all samples were dropped"))
	}
	return b.batch, b.err
}

// Recycle gives back the memory of a batch that this loader has made, for a later batch to be built in. The caller must
// not use b, or what b refers to, afterwards. Recycle is optional, and pays for large batches. A loop needs the memory of
// Workers × Prefetch + 2 batches: those in flight, the one in the body, and one that is recycled late. If more is given
// back, the garbage collector gets the rest. It also gets the memory of batches that fail, and of those in flight when a
// loop is left.
func (l *DataLoader[B]) Recycle(b B) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.free) < l.most {
		l.free = append(l.free, b)
	}
}

// items returns the batches that follow a cursor, as a Stream does: one loop over the rest of an epoch.
func (l *DataLoader[B]) items(ctx context.Context, from Cursor) iter.Seq2[Item[B], error] {
	return func(yield func(Item[B], error) bool) {
		p, err := l.resume(from)
		if err != nil {
			yield(Item[B]{}, err)
			return
		}
		loading := engine[result[B]]{
			workers: min(l.opts.Workers, p.steps),
			window:  max(1, min(l.opts.Workers*l.opts.Prefetch, p.steps)),
			ordered: !l.opts.Unordered,
			task:    func(b *result[B]) bool { return l.task(p, b) },
			newLoad: func(ctx context.Context, worker int) func(*result[B]) { return l.newLoad(ctx, worker, p) },
		}
		loading.run(ctx, func(b *result[B]) bool {
			b.Received = p.now()
			if ctx.Err() != nil {
				err = context.Cause(ctx)
				return false
			}
			l.judge(p, b)
			p.deliver(b.step)
			if l.opts.Trace != nil {
				l.opts.Trace(p.timing(b.Timing))
			}
			more := true
			if b.err != nil || b.Samples > 0 {
				more = yield(Item[B]{b.batch, b.err, p.cursor(l.plain)}, nil)
			} else { // all samples were dropped
				l.Recycle(b.batch)
			}
			p.last, p.returned = b.Timing, p.now()
			return more
		})
		if err != nil {
			yield(Item[B]{}, err)
		}
	}
}

// task makes b the next batch to load, if there is one.
func (l *DataLoader[B]) task(p *pass, b *result[B]) bool {
	b.step = p.take()
	if b.step >= p.steps {
		return false
	}
	l.mu.Lock()
	if last := len(l.free) - 1; last >= 0 {
		b.batch, l.free[last] = l.free[last], *new(B)
		l.free = l.free[:last]
	}
	l.mu.Unlock()
	b.Sent = p.now()
	return true
}

// A result carries a batch through the engine: first what to load, then what was loaded.
type result[B any] struct {
	step   int            // the number of the batch in its pass
	batch  B              // first the memory to build the batch in, then the batch; zero if it failed
	failed []*SampleError // the samples that could not be fetched, for OnError
	err    error          // a *SampleError if the batch failed
	Timing                // of the batch; its times are zero without Trace
}

// judge asks OnError about the samples of b that failed.
func (l *DataLoader[B]) judge(p *pass, b *result[B]) {
	for _, failed := range b.failed {
		_, err := try(func() (any, error) { return nil, l.opts.OnError(failed) })
		if err != nil {
			b.err = located(err, p.fault(b.step, failed.Index, fmt.Errorf("OnError: %w", err)))
			break
		}
	}
	b.Epoch, b.Batch, b.Dropped = p.epoch, p.first+b.step, len(b.failed)
	if b.err != nil {
		b.batch, b.Samples, b.Dropped = *new(B), 0, 0
	}
}

// A job is the batch that a goroutine loads: which samples, and what has become of them. Each goroutine has one job, and
// reuses its slices from batch to batch.
type job[B any] struct {
	ctx     context.Context
	scope   *scope // of ctx
	pass    *pass
	n       int     // the number of samples in the data set
	onError bool    // whether OnError decides about samples that fail
	fill    fill[B] // makes the batch

	step      int            // the number of the batch in its pass
	positions []int          // the positions of the batch in the epoch
	indices   []int          // the indices of the batch's samples
	spots     []spot         // for Rand; one for each index
	next      int            // how many of indices have been tried; the fill of NewFunc leaves it 0
	at        int            // the index for which user code is being called, or -1; it becomes the Index of an error
	samples   int            // how many samples are in the batch; set by fill
	failed    []*SampleError // the samples that OnError is to decide about
}

// A fill makes the batch of j.indices, in the memory of dst.
type fill[B any] func(j *job[B], dst B) (B, error)

// load turns b, which says what to load, into the batch or its error.
func (j *job[B]) load(b *result[B]) {
	b.Worker, b.Start = j.scope.worker, j.pass.now()
	j.step, j.indices, j.next, j.at, j.samples, j.failed = b.step, j.indices[:0], 0, -1, 0, nil
	j.proceed(b)
}

// proceed chooses the indices of b and makes the batch. If a Get ends the goroutine and OnError decides about the sample, a
// new goroutine proceeds with the next sample. The deferred function of the old one waits for it.
func (j *job[B]) proceed(b *result[B]) {
	b.err = errGoexit // which stands if user code ends the goroutine
	defer func() {
		if b.err == errGoexit && j.at >= 0 && j.onError && j.scope.worker >= 0 {
			j.failed = append(j.failed, j.pass.fault(j.step, j.at, errGoexit))
			var rest sync.WaitGroup
			rest.Go(func() { j.proceed(b) })
			rest.Wait()
			return
		}
		if b.err != nil {
			b.err = j.pass.fault(j.step, j.at, b.err)
		}
		b.failed, b.Samples, b.Done = j.failed, j.samples, j.pass.now()
	}()
	defer rescue(&b.err) // runs first
	var err error
	if j.next == 0 {
		err = j.choose()
	}
	if err == nil {
		b.batch, err = j.fill(j, b.batch)
	}
	b.err = err
}

// choose asks the order for the indices of the batch.
func (j *job[B]) choose() error {
	p := j.pass
	if trace.IsEnabled() {
		trace.Logf(j.ctx, "batch", "epoch %d, batch %d", p.epoch, p.first+j.step)
	}
	if p.broken != nil {
		return p.broken
	}
	j.spots = j.spots[:0]
	j.positions = p.deal.positions(j.positions[:0], j.step)
	for _, pos := range j.positions {
		j.indices = p.order(j.indices, pos%p.deal.n) // PadTail begins again with the first positions
		for part, i := range j.indices[len(j.spots):] {
			if i < 0 || i >= j.n {
				return fmt.Errorf("the sampler: %w", outside(i, j.n))
			}
			j.spots = append(j.spots, spot{uint64(p.epoch), uint64(pos), uint64(part)})
		}
	}
	if len(j.indices) == 0 {
		return errors.New("the sampler gave no index")
	}
	return nil
}

// whole returns the spot of the whole batch, which differs from those of its samples.
func (j *job[B]) whole() spot {
	return spot{j.spots[0].epoch, j.spots[0].pos, math.MaxUint64}
}

// A fetcher makes batches for New: it fetches sample by sample, and collates. Its slice is reused for each batch.
type fetcher[T, B any] struct {
	data    Dataset[T]
	begin   begin[T] // of data; nil if every sample is fetched on its own
	collate Collate[T, B]

	sample  func(k int) (T, error) // sample k of the batch, after begin
	samples []T                    // those fetched, with the indices j.indices[:len(samples)]
}

// fill fetches the samples that have not been tried yet. A sample that fails fails the batch, or is put aside for
// OnError. A batch of which no sample is left is not collated.
func (f *fetcher[T, B]) fill(j *job[B], dst B) (B, error) {
	err := f.fetch(j)
	f.sample = nil // it may hold what GetBatch returned
	defer clear(f.samples)
	if j.samples = len(f.samples); err != nil || j.samples == 0 {
		return dst, err
	}
	defer trace.StartRegion(j.ctx, "collate").End()
	batch, err := f.collate(dst, f.samples)
	if err != nil {
		err = fmt.Errorf("collating %d samples %v: %w", j.samples, j.indices[:min(16, j.samples)], err)
	}
	return batch, err
}

// fetch gets the samples one by one. A sample that fails ends the batch, or goes to j.failed for OnError.
func (f *fetcher[T, B]) fetch(j *job[B]) (err error) {
	defer trace.StartRegion(j.ctx, "fetch").End()
	if j.next == 0 {
		f.samples = f.samples[:0]
		if f.begin != nil {
			j.scope.move(j.whole())
			if f.sample, err = f.begin(j.ctx, j.indices); err != nil {
				return err
			}
		}
	}
	for j.next < len(j.indices) {
		if err := j.ctx.Err(); err != nil {
			return err
		}
		k := j.next
		j.next++
		j.at = j.indices[k]
		j.scope.move(j.spots[k])
		sample, err := f.get(j, k)
		if err == nil {
			j.indices[len(f.samples)] = j.at // never ahead of k
			f.samples = append(f.samples, sample)
		} else if j.onError {
			j.failed = append(j.failed, j.pass.fault(j.step, j.at, err))
		} else {
			return err
		}
	}
	j.at = -1
	return nil
}

// get fetches sample k of the batch.
func (f *fetcher[T, B]) get(j *job[B], k int) (sample T, err error) {
	defer rescue(&err)
	if f.begin != nil {
		return f.sample(k)
	}
	return f.data.Get(j.ctx, j.indices[k])
}

// A Cursor is a place in an epoch of a loader or a stream, between two items. It is all that a checkpoint needs. Save it
// as JSON, and pass it to Run to continue there. The zero Cursor is the start of epoch 0. Cursor{Epoch: e} is the start
// of epoch e, of any loader and stream. A copy of a cursor stays valid: Run replaces *at, and never changes its State in
// place.
type Cursor struct {
	Epoch int `json:"epoch"`
	// Pos says how far into the epoch the cursor stands. A stream's Pos grows from item to item. A loader's is the number
	// of positions that all shards together have consumed. If Unordered, it stops at the first batch not yet handed over.
	Pos int `json:"pos"`
	// State describes the loader or stream that made the cursor, so that another one refuses it, and may hold more. The
	// description has lengths and seeds, and not the content of the data. At the start of an epoch it is nil. In a cursor
	// decoded from JSON it is a json.RawMessage, which Load decodes.
	State any `json:"state,omitempty"`
}

// UnmarshalJSON decodes a cursor, but leaves its State raw, because only the maker of the cursor knows its type.
func (c *Cursor) UnmarshalJSON(data []byte) error {
	type fields Cursor // without this method
	var raw json.RawMessage
	f := fields{State: &raw}
	if err := json.Unmarshal(data, &f); err != nil {
		return err
	}
	if f.State = nil; raw != nil {
		f.State = raw
	}
	*c = Cursor(f)
	return nil
}

// Load decodes State into *state. It always goes through JSON, so a fresh cursor and a saved one give the same result,
// which shares no memory with the cursor. Integers are exact in any integer type. If State is nil, *state stays as it is.
func (c Cursor) Load(state any) error {
	if c.State == nil {
		return nil
	}
	data, err := json.Marshal(c.State)
	if err == nil {
		err = json.Unmarshal(data, state)
	}
	if err != nil {
		return fmt.Errorf("dataloader: the state of cursor {epoch %d, pos %d} does not fit: %w", c.Epoch, c.Pos, err)
	}
	return nil
}

// atStart reports whether c is the start of an epoch, which fits any loader and stream.
func (c Cursor) atStart() bool { return c.Pos == 0 && c.State == nil }

// fit decodes the State of a cursor into *state, or says why the cursor does not fit the loader or stream described by
// name. The description of the cursor's maker is a field of *state, to which by points.
func (c Cursor) fit(name string, by *string, state any) error {
	if c.Epoch < 0 || c.Epoch == math.MaxInt || c.Pos < 0 {
		return c.refused("epoch and pos must not be negative, and epoch must be less than %d", math.MaxInt)
	}
	if c.atStart() {
		return nil
	}
	if c.State == nil {
		return c.refused("it has no State; in the middle of an epoch use a cursor of Run, or for a DataLoader one of its At")
	}
	if err := c.Load(state); err != nil {
		return err
	}
	if *by != name {
		return c.refused("it was made by %s, this is %s; use the same data and options, or start at Cursor{Epoch: %d}",
			cmp.Or(*by, "another stream"), name, c.Epoch)
	}
	return nil
}

// refused is the error of a cursor that does not fit.
func (c Cursor) refused(format string, args ...any) error {
	return fmt.Errorf("dataloader: cursor {epoch %d, pos %d}: "+format, append([]any{c.Epoch, c.Pos}, args...)...)
}

// An Item is a value and the cursor just after it. A failed item has an Err and the zero Value; it is a position like
// any other.
type Item[T any] struct {
	Value T
	Err   error
	Next  Cursor
}

// follow returns the values of the items from *at on, and keeps *at current. A panic in items becomes the last error. A
// panic in the loop body is the caller's, and passes.
func follow[T any](items func(from Cursor) iter.Seq2[Item[T], error], at *Cursor) iter.Seq2[T, error] {
	panicIf(at == nil, "Run: the cursor is nil; pass the address of one, such as new(Cursor)")
	return func(yield func(T, error) bool) {
		var end error   // why the loop cannot be continued
		inBody := false // whether the loop body runs
		left := false   // whether the loop body has left the loop
		func() {
			defer func() {
				if inBody || left {
					return
				}
				if r := recover(); r != nil {
					end = finalError(fmt.Errorf("dataloader: epoch %d: %w", at.Epoch, &PanicError{r, debug.Stack()}))
				}
			}()
			epoch := at.Epoch
			for item, err := range items(*at) {
				if err != nil {
					end = finalError(err)
					return
				}
				if item.Err != nil {
					err = itemError(item.Next, item.Err)
				} else {
					*at = item.Next
				}
				inBody = true
				left = !yield(item.Value, err)
				inBody = false
				if left {
					return
				}
			}
			*at = Cursor{Epoch: epoch + 1}
		}()
		if end != nil {
			yield(*new(T), end)
		}
	}
}

// itemError returns err, the error of the item before next, as a *SampleError.
func itemError(next Cursor, err error) error {
	return located(err, &SampleError{Epoch: next.Epoch, Batch: -1, Index: -1, Pos: next.Pos, Err: err})
}

// located returns err if it is or wraps a *SampleError, and otherwise at, which says where err happened.
func located(err, at error) error {
	if found := (*SampleError)(nil); errors.As(err, &found) {
		return err
	}
	return at
}

// finalError returns err, the last error of a loop, so that errors.As finds no *SampleError in it. The cause of a cancelled
// context can be one: a program may cancel all its loops with the error of one. A loop that skips every *SampleError would
// then miss its end, and run for ever.
func finalError(err error) error {
	if found := (*SampleError)(nil); errors.As(err, &found) {
		return final{err}
	}
	return err
}

// A final is an error that wraps another one for errors.Is, and not for errors.As.
type final struct{ error }

// Is reports whether the wrapped error is target.
func (f final) Is(target error) bool { return errors.Is(f.error, target) }

// A loaderState is the State in a loader's cursors. A loader with another By or Seed refuses the cursor.
type loaderState struct {
	By   string `json:"by"`             // describes the order
	Seed uint64 `json:"seed,omitempty"` // of Rand
	// Done lists the steps that have been handed over out of order, counted from Pos. Shard and Size, the batch size, say
	// what a step is. Loaders with Options.Unordered always set Shard and Size: each rank has handed over other batches, so
	// another rank's cursor does not fit.
	Done  []span `json:"done,omitempty"`
	Shard *Shard `json:"shard,omitempty"`
	Size  int    `json:"size,omitempty"`
}

// span{a, b} is the steps a <= k < b.
type span [2]int

// A pass is one loop's way through the rest of an epoch. It counts its steps, which are the shard's batches, from where
// the loop began. Out of order, the steps that have been handed over are those below mark, and some ahead of it:
//
//	step   0 1 2 3 4 5 6 7 8 9          handed over: 0, 1, 3, 4, 7
//	       x x . x x . . x . .
//	           ^                        mark = 2, ahead = {3, 5} and {7, 8}
//
// A pass belongs to the goroutine of the loop. Workers only read what resume has set.
type pass struct {
	epoch  int
	deal   deal
	order  order
	broken error // why there is no order; it fails every batch
	first  int   // the number in the epoch of the batch at step 0
	steps  int

	next  int    // the next step to send, unless it is in ahead
	mark  int    // the low-water mark: all steps below it have been handed over, and the step at it has not
	ahead []span // the steps above mark that have been handed over; sorted, no two touch

	began, returned time.Time // when the loop began, and when its body returned last; zero without Trace
	last            Timing    // of the batch before; zero for the first
}

// resume begins a pass at a cursor, or says why the cursor does not fit.
func (l *DataLoader[B]) resume(from Cursor) (*pass, error) {
	var s loaderState
	if err := from.fit(l.name, &s.By, &s); err != nil {
		return nil, err
	}
	if !from.atStart() && s.Seed != l.opts.Seed {
		return nil, from.refused("it was made with Options.Seed %d, this loader has Options.Seed %d", s.Seed, l.opts.Seed)
	}
	if from.Pos > l.deal.n {
		return nil, from.refused("pos must be at most %d", l.deal.n)
	}
	if own := cmp.Or(s.Shard, &l.deal.shard); *own != l.deal.shard || s.Shard != nil && s.Size != l.deal.size || s.Shard == nil && len(s.Done) > 0 {
		return nil, from.refused("it was made out of order by shard %v with batches of %d, this loader is shard %v with batches of %d",
			*own, s.Size, l.deal.shard, l.deal.size)
	}
	p := &pass{epoch: from.Epoch, deal: l.deal.start(from.Pos), ahead: s.Done}
	if l.opts.Trace != nil {
		p.began = time.Now()
		p.returned = p.began
	}
	p.first = from.Pos / l.deal.size / l.deal.shard.Count
	p.steps = p.deal.steps()
	end := 0 // of the span before; step 0 is at the mark, and never in a span
	for _, done := range s.Done {
		if done[0] <= end || done[1] <= done[0] || done[1] > p.steps {
			return nil, from.refused("its state is damaged: %v are not steps of %d", s.Done, p.steps)
		}
		end = done[1]
	}
	p.order, p.broken = try(func() (order, error) { return l.orderOf(p.epoch), nil })
	return p, nil
}

// now returns the time if Trace is set, and zero otherwise. Reading the wall clock takes longer than reading the monotonic
// clock, so the wall clock is read once, when the loop begins.
func (p *pass) now() time.Time {
	if p.began.IsZero() {
		return p.began
	}
	return p.began.Add(time.Since(p.began))
}

// timing completes the timing of a batch that the loop has received.
func (p *pass) timing(t Timing) Timing {
	t.Wait = t.Received.Sub(p.returned)
	t.Step = p.returned.Sub(cmp.Or(p.last.Received, p.returned))
	t.First = p.last == Timing{}
	return t
}

// take returns the next step to send; p.steps or more means that there is none. It skips the steps that were handed over
// before the loop was resumed.
func (p *pass) take() int {
	p.next = max(p.next, p.mark)
	for _, done := range p.ahead {
		if done[0] <= p.next && p.next < done[1] {
			p.next = done[1]
		}
	}
	p.next++
	return p.next - 1
}

// deliver notes that step k is handed over. It joins k to the spans that it touches, and moves the mark past the first
// span if that begins at the mark.
func (p *pass) deliver(k int) {
	i, _ := slices.BinarySearchFunc(p.ahead, k, func(s span, k int) int { return s[0] - k }) // the first span after k
	s, j := span{k, k + 1}, i
	if i > 0 && p.ahead[i-1][1] == k {
		i--
		s[0] = p.ahead[i][0]
	}
	if j < len(p.ahead) && p.ahead[j][0] == k+1 {
		s[1] = p.ahead[j][1]
		j++
	}
	p.ahead = slices.Replace(p.ahead, i, j, s)
	if p.ahead[0][0] == p.mark {
		p.mark = p.ahead[0][1]
		p.ahead = slices.Delete(p.ahead, 0, 1)
	}
}

// cursor returns the place after the steps that have been handed over. plain is its State if no step is ahead of the mark.
func (p *pass) cursor(plain any) Cursor {
	c := Cursor{p.epoch, p.deal.after(p.mark), plain}
	if len(p.ahead) > 0 {
		s := *plain.(*loaderState)
		s.Shard, s.Size = &p.deal.shard, p.deal.size
		for _, done := range p.ahead {
			s.Done = append(s.Done, span{done[0] - p.mark, done[1] - p.mark})
		}
		c.State = &s
	}
	return c
}

// fault returns the error of the batch at step k, for the sample with the given index.
func (p *pass) fault(k, index int, err error) *SampleError {
	return &SampleError{Epoch: p.epoch, Batch: p.first + k, Index: index, Err: err}
}

// A SampleError says which batch of a loader, or which item of a stream, has failed, and why. Usually one sample is the
// cause, hence the name. A loop over Run or Epoch may skip a *SampleError. Every other error is the last.
type SampleError struct {
	Epoch int
	Batch int   // the batch of this shard, from 0; -1 for an item of a stream
	Index int   // the sample's index in the data set, or -1: the error is of the batch as a whole
	Pos   int   // for an item of a stream, the Pos of the cursor after it
	Err   error // the cause: what Get returned, a PanicError, a TarError, …
}

// Error names the epoch, and the batch and the sample, or the item.
func (e *SampleError) Error() string {
	switch {
	case e.Batch < 0:
		return fmt.Sprintf("dataloader: epoch %d, the item before pos %d: %v", e.Epoch, e.Pos, e.Err)
	case e.Index == -1:
		return fmt.Sprintf("dataloader: epoch %d, batch %d: %v", e.Epoch, e.Batch, e.Err)
	}
	return fmt.Sprintf("dataloader: epoch %d, batch %d, sample %d: %v", e.Epoch, e.Batch, e.Index, e.Err)
}

// Unwrap returns the cause.
func (e *SampleError) Unwrap() error { return e.Err }

// A Timing says what happened to one batch, and when.
type Timing struct {
	Epoch, Batch int // the batch of this shard, from 0
	Worker       int // the worker that loaded the batch, or -1
	Samples      int // the number of samples in the batch
	Dropped      int // the number of samples that OnError dropped

	Sent     time.Time // when the batch was sent to the workers
	Start    time.Time // when a worker took it
	Done     time.Time // when it was loaded
	Received time.Time // when the loop's goroutine had it

	Wait  time.Duration // how long the loop was blocked
	Step  time.Duration // how long the loop body had the batch before; 0 for the first batch of a loop
	First bool          // whether it is the first batch of a loop
}

// Second reading: a loader as a stream, and where the time goes.

// Stream returns the loader as a stream of its batches: to map them, or to mix them with those of another loader.
//
// A loader with Options.Unordered is no stream. What it yields depends on timing, and a stage that reads its source again
// at a resume would lose samples and repeat others. Its Stream yields only an error that says so.
func (l *DataLoader[B]) Stream() Stream[B] {
	if l.opts.Unordered {
		return streamOf(func(context.Context, Cursor, func(Item[B]) bool) error {
			return errors.New("dataloader: a loader with Options.Unordered is no stream, because a resume could lose samples: use its Run, or leave Unordered unset")
		})
	}
	return l.items
}

// Stats sums up the timings of a loader, and says in one line where the time goes. Set Options.Trace to the Observe
// method of a new(Stats), and print that pointer at any time. The zero value is ready for use. Stats is safe for concurrent
// use. Have one Stats for each loader; the times of several loops at once add up.
type Stats struct {
	mu                         sync.Mutex // guards the other fields
	batches, loops             int
	samples, dropped, workers  int
	loading, waiting, training time.Duration
	starting                   time.Duration // the part of waiting that was for the first batches of loops
	blocked                    time.Duration // the part of waiting while the next batch was ready
	last                       Timing
}

// Observe adds a batch.
func (s *Stats) Observe(t Timing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batches++
	s.samples += t.Samples
	s.dropped += t.Dropped
	s.workers = max(s.workers, t.Worker+1)
	s.loading += t.Done.Sub(t.Start)
	s.waiting += t.Wait
	s.training += t.Step
	if t.First {
		s.loops++
		s.starting += t.Wait
	}
	// The loop waited for the batch before for last.Wait until last.Received. This batch was ready from t.Done on.
	s.blocked += min(s.last.Wait, max(0, s.last.Received.Sub(t.Done)))
	s.last = t
}

// String returns one line: the number of batches and samples; the share of the time in loops that was spent waiting for
// batches, and the share in which the next batch was ready, but a slow one before it blocked it; how busy the
// workers were; and the bottleneck, with the number of workers that would be enough.
//
// The time in loops is the waiting and the training. Training is timed from batch to batch, so the training after the
// last batch of a loop counts as the mean of the others. If every loop had one batch, nothing is known about training.
func (s *Stats) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	timed := s.batches - s.loops
	if timed == 0 {
		return fmt.Sprintf("%d batches in %d loops: too few to tell, since training is timed between two batches of a loop", s.batches, s.loops)
	}
	step := s.training / time.Duration(timed)
	elapsed := max(1, s.waiting+step*time.Duration(s.batches))
	percent := func(d time.Duration) float64 { return 100 * float64(d) / float64(elapsed) }
	unit := time.Millisecond
	if elapsed < 100*unit {
		unit = time.Microsecond
	}
	text := fmt.Sprintf("%d batches, %d samples (%.0f/s), %d dropped; waited %.0f %% of %v, %.0f %% with the next batch ready",
		s.batches, s.samples, float64(s.samples)/elapsed.Seconds(), s.dropped, percent(s.waiting), elapsed.Round(unit), percent(s.blocked))
	busy := percent(s.loading) / float64(max(1, s.workers))
	if s.workers > 0 {
		text += fmt.Sprintf("; workers: %d, %.0f %% busy", s.workers, busy)
	}
	return text + ": " + s.verdict(step, elapsed, busy)
}

// verdict compares the time to load a batch with the time that the loop spends on a batch. enough is the number of
// workers that load as fast as the loop trains.
func (s *Stats) verdict(step, elapsed time.Duration, busy float64) string {
	load := float64(s.loading) / float64(s.batches)
	enough := int(math.Ceil(load/max(float64(step), load/1000, 1) - 0.05))
	cpus := runtime.GOMAXPROCS(0)
	switch {
	case s.waiting < elapsed/10:
		return fmt.Sprintf("the training is the bottleneck, workers needed: %d", min(enough, s.workers))
	case s.workers == 0 && enough <= 1:
		return "loading and training take turns, a worker would load during training"
	case enough <= s.workers && s.starting > s.waiting/2:
		return fmt.Sprintf("the loader keeps up after the first batch of a loop; loops: %d", s.loops)
	case enough <= s.workers && s.blocked > s.waiting/2:
		return "slow batches block the batches behind them, raise Prefetch or set Unordered"
	case enough <= s.workers:
		return "the loader keeps up on average but not always, raise Prefetch"
	case s.workers > 0 && busy < 75:
		return "a few batches are so slow that the loop waits for them while workers are idle"
	case float64(step) < load/1000:
		return "the loader is the bottleneck, the loop takes no time of its own"
	case enough > cpus:
		return fmt.Sprintf("the loader is the bottleneck, workers needed: %d, if they wait rather than compute; to compute there are %d CPUs", enough, cpus)
	}
	return fmt.Sprintf("the loader is the bottleneck, workers needed: %d", enough)
}

// Progress returns seq, and shows on w how far seq has got: the number of items, of total unless that is 0 or less, the
// rate, the time left, and the share of the time in which the loop waited for seq. total is the number of items in seq;
// for a resumed epoch that is the rest of the epoch. Values and errors pass unchanged.
//
// To find the slow stage of a pipeline, read its source alone, then with one stage, then with two, and so on, each with
// Take, Progress and an empty loop body: the rate falls at the slow stage. Stages in one goroutine add up their times.
// Prefetch, and a Map with workers, start goroutines, and then the slowest goroutine sets the rate. After Batch the rate
// counts batches.
//
// On a terminal Progress draws a bar, at most ten times a second and when an item is done. Elsewhere it writes a line
// every ten seconds. A last line comes at the end, also after a break. PyTorch: what tqdm does around a DataLoader.
func Progress[B any](w io.Writer, total int, seq iter.Seq2[B, error]) iter.Seq2[B, error] {
	return progress(w, total, isTerminal(w), seq)
}

// isTerminal reports whether w is a terminal, as far as the standard library can tell: a character device.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// progress is Progress for a writer that is a terminal, or not. On a terminal each line overwrites the line before.
func progress[B any](w io.Writer, total int, terminal bool, seq iter.Seq2[B, error]) iter.Seq2[B, error] {
	every, format := 10*time.Second, "%s\n"
	if terminal {
		every, format = time.Second/10, "\r%-79s"
	}
	return func(yield func(B, error) bool) {
		start := time.Now()
		m, drawn, returned, more := meter{total: total}, start, start, true // drawn: the last line; returned: the loop body
		for item, err := range seq {
			m.waited += time.Since(returned)
			more = yield(item, err)
			returned = time.Now()
			m.elapsed = returned.Sub(start)
			m.count++
			if !more {
				break
			}
			if returned.Sub(drawn) >= every {
				drawn = returned
				fmt.Fprintf(w, format, m.line(terminal))
			}
		}
		if more { // the loop has waited for the end of seq
			m.waited += time.Since(returned)
			m.elapsed = time.Since(start)
		}
		fmt.Fprintf(w, strings.TrimSuffix(format, "\n")+"\n", m.line(terminal))
	}
}

// A meter says how far a sequence has got.
type meter struct {
	total, count    int
	elapsed, waited time.Duration
}

// line returns the meter as a line. On a terminal it has a bar, and less than 80 columns unless the numbers are large.
func (m meter) line(bar bool) string {
	elapsed := max(m.elapsed, 1)
	text := fmt.Sprint(m.count)
	if m.total > 0 {
		share := min(float64(m.count)/float64(m.total), 1)
		if text = fmt.Sprintf("%d/%d %3.0f%%", m.count, m.total, 100*share); bar {
			done := int(12 * share)
			text += " [" + strings.Repeat("#", done) + strings.Repeat(".", 12-done) + "]"
		}
	}
	rate, format := float64(m.count)/elapsed.Seconds(), " %.3g/s, %v"
	if rate >= 100 {
		format = " %.0f/s, %v"
	}
	text += fmt.Sprintf(format, rate, m.elapsed.Round(time.Second/10))
	if left := float64(elapsed) / float64(m.count) * float64(m.total-m.count); m.count > 0 && left > 0 {
		text += fmt.Sprintf(", %v left", time.Duration(min(left, 1<<62)).Round(time.Second/10))
	}
	return text + fmt.Sprintf(", waited %.0f%%", 100*float64(m.waited)/float64(elapsed))
}
