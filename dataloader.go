// This copy is of 26 November 2026.

// Package dataloader loads samples for machine learning: shuffled, in batches,
// by several goroutines at once, in an order that depends only on a seed and
// the epoch. It is PyTorch's DataLoader for Go. (It is not the batcher of
// GraphQL queries that has the same name.)
//
//	type image = dataloader.Tensor[float32]
//	get := func(_ context.Context, i int) (image, error) { return decode(i) }
//	images := dataloader.Func(60000, get)
//	loader, err := dataloader.New(images, dataloader.Stack[float32],
//		dataloader.Options{BatchSize: 64, Shuffle: true, Workers: 4})
//	if err != nil {
//		return err
//	}
//	var at dataloader.Cursor // or a saved one: the loop continues there
//	for at.Epoch < 10 {
//		for batch, err := range loader.Run(ctx, &at) {
//			if err != nil {
//				return err
//			}
//			train(model, batch) // a Tensor of the shape [64, …]
//			save(model, at)     // with the cursor as JSON: the checkpoint
//			loader.Recycle(batch)
//		}
//	}
//
// A [DataLoader] loads a [Dataset] in the order of a [Sampler], in batches that
// a [Collate] or the function of [NewBatchFunc] makes. A [Stream] loads data
// without indices. [Rand] gives each sample its random numbers, which depend on
// the seed and its position. A batch that fails is a [*SampleError], which a
// loop may skip; every other error is the last.
//
// # To look up
//
// What may change at a checkpoint:
//
//	in order    Workers, Prefetch, Rank, BatchSize. The rest of the epoch
//	            comes in other batches, with the same random numbers, except
//	            those of NewBatchFunc, which are the batch's
//	Unordered   Workers, Prefetch
//
// What must not change there:
//
//	the order, Seed, DataVersion   otherwise the cursor is refused
//	the data                       if their number stays the same, only
//	                               DataVersion notices
//
// What must be safe for concurrent use:
//
//	Get, the functions of Func and       workers call them while the body
//	Transform, Collate, the load of      runs; without workers the loop calls
//	NewBatchFunc, a sampler's            them, in turn
//	functions, Map's f
//	OnError and Trace, if loops share    the loop calls them, just before it
//	them                                 hands over a batch
//
// An order has a table if it is Random up to 4,096, TorchRandom, OrderFunc, or
// Weighted without replacement. In profiles, goroutines have the label
// dataloader ("worker 0", "reader"). In execution traces (go test -trace) each
// batch of a loader has a log entry, and the regions fetch and collate, or
// load.
//
// A recipe is an Example in testdata/recipes, whose README.md lists the recipes
// by what they are for.
//
// # Reading order
//
// To learn how a loader works, read testdata/lesson.md, in a browser or a
// terminal: it starts from a loop of ten lines, answers one question a section,
// and has exercises.
//
// To change the package, read it by file. Four files answer one question each,
// first for data with indices, then, after the line "Second reading", for
// streams: what (dataset.go), in which order (sampler.go), in what shape
// (batch.go), by which goroutine and how (worker.go). Read their first halves,
// then that of dataloader.go, then the second halves, then tar.go, which reads
// many small files as a few tar files (PyTorch: webdataset; see [Tar],
// [OpenTar] and [TarWriter]). The first halves are two fifths of the code, and
// testdata/classic.go writes them as a package of their own; the lesson's
// section 12, Slots, has a map of them. The numbers that go with a batch, such
// as step and pos, are explained at the type deal.
package dataloader

import (
	"bytes"
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
	"unicode/utf8"
)

// All of it together: this file has the options, the order and its cursors, the
// loop, and the errors.

// Options say how a DataLoader loads. The zero value has PyTorch's defaults:
// one sample a batch, in order, in the loop's own goroutine.
type Options struct {
	// BatchSize is the number of samples in a batch; 0 means 1. It may change
	// at a checkpoint: the same samples follow, divided otherwise. It must not
	// change if Unordered is set, or if Shuffle or Unbatch follow StreamOf the
	// loader. PyTorch: batch_size.
	BatchSize int
	// Shuffle makes the order Random(data.Len(), Seed) instead of Sequential.
	// PyTorch: shuffle.
	Shuffle bool
	// Seed is the seed of Shuffle and of Rand. 0 is a seed like any other. All
	// ranks need the same Seed: with others they deal out different orders, and
	// samples come twice or never. PyTorch: generator.
	Seed uint64
	// DataVersion names the data, in UTF-8: a version, a date, a hash of the
	// ids in hex. Cursors contain it. A loader of other data refuses them, even
	// if the number of samples is the same: otherwise some would come twice in
	// the epoch, and others never. "", in a cursor or here, fits every name,
	// and the start of an epoch fits all data. If Shuffle or Unbatch follow
	// StreamOf the loader, "" fits only "", so a DataVersion that is added to a
	// running job may refuse its checkpoints.
	DataVersion string
	// DropLast leaves out the last batch if it is not full. PyTorch: drop_last.
	DropLast bool
	// Sampler is the order of the samples. It excludes Shuffle. nil means the
	// order of Shuffle. PyTorch: sampler.
	Sampler Sampler
	// BatchSampler is the order of whole batches. It excludes BatchSize,
	// Shuffle, Sampler and DropLast. PyTorch: batch_sampler.
	BatchSampler BatchSampler

	// Rank says which part of each epoch is loaded: the positions Index,
	// Index+Count, … of the order, or the batches of a BatchSampler. The zero
	// value is the whole epoch. PyTorch: DistributedSampler.
	Rank Rank
	// Tail says what happens if the epoch cannot be dealt out evenly. The zero
	// value is PadTail.
	Tail Tail

	// Workers is the number of goroutines that load. With 0 the loop's own
	// goroutine loads each batch when it is needed. PyTorch: num_workers.
	Workers int
	// Prefetch times Workers is the window: the most batches in flight, of all
	// workers together. 0 means 2. More helps if the times of batches vary
	// much, or if a batch takes less than 100 µs. Without Workers it must be 0.
	// PyTorch: prefetch_factor.
	Prefetch int
	// Unordered hands over batches as they are ready. A slow batch occupies a
	// worker and a place in the window, but holds up no other. Each batch still
	// comes exactly once, also in a run that resumes from the cursor. Such a
	// cursor resumes loops in order, too, but only of the same rank with the
	// same BatchSize. An Unordered loop accepts any cursor of a loop in order,
	// except another rank's with OnError under UnevenTail. PyTorch:
	// in_order=False.
	Unordered bool

	// OnError, if not nil, decides what a sample costs that cannot be fetched.
	// If it returns nil, the sample is dropped. If it returns an error, the
	// batch fails, and OnError is not asked about the rest of the batch. A
	// batch whose samples are all dropped is skipped; but on several ranks that
	// must take equal steps (PadTail, DropTail) it fails: see the recipe
	// Example_badSamplesOnRanks.
	//
	// OnError is not asked about a Goexit, nor about errors of no single
	// sample, which have Index -1 and fail the batch: those of Collate,
	// NewBatchFunc's load and the sampler.
	//
	// Have a budget, as in the recipe Example_droppedSamples: an epoch without
	// batches is no error. Cursors do not contain what OnError counts. Under
	// UnevenTail a rank may skip a batch that others have, so cursors belong to
	// their rank.
	//
	// OnError runs just before the batch is handed over, in the goroutine that
	// reads the loader. So the order of its calls does not depend on Workers,
	// unless Unordered is set. That goroutine is the loop's or, behind Mix,
	// Prefetch or a Map with workers, one that reads ahead of the loop. Two
	// loops over one loader, and two loaders in a Mix, may call OnError at the
	// same time.
	OnError func(*SampleError) error
	// Trace, if not nil, is called for each batch, after OnError. A failed
	// batch counts too, and so does a batch whose samples were all dropped;
	// both have 0 Samples. A panic in Trace ends the loop.
	Trace func(Timing)
}

// withDefaults returns o for n samples with its defaults filled in, or says
// which field is wrong.
func (o Options) withDefaults(n int) (_ Options, err error) {
	o.Rank, err = o.Rank.withCount()
	if o.Prefetch == 0 && o.Workers > 0 {
		o.Prefetch = 2
	}
	batched := o.BatchSampler != nil
	err = cmp.Or(
		errorIf(batched && o.BatchSize != 0,
			"BatchSampler excludes BatchSize (%d); leave it unset", o.BatchSize),
		errorIf(batched && o.Sampler != nil,
			"BatchSampler excludes Sampler; leave it unset"),
		errorIf(batched && o.Shuffle,
			"BatchSampler excludes Shuffle (true); leave it unset"),
		errorIf(batched && o.DropLast,
			"BatchSampler excludes DropLast (true); leave it unset"),
		errorIf(o.Sampler != nil && o.Shuffle,
			"Sampler excludes Shuffle; a shuffling Sampler is Random"),
		errorIf(o.BatchSize < 0,
			"BatchSize is %d, must be positive, or 0 for 1", o.BatchSize),
		errorIf(o.Workers < 0,
			"Workers is %d, must not be negative; 0 loads in the loop's own goroutine", o.Workers),
		errorIf(o.Prefetch < 0,
			"Prefetch is %d, must be positive, or 0 for 2", o.Prefetch),
		errorIf(o.Prefetch > 0 && o.Workers == 0,
			"Prefetch is %d without workers; leave it 0 or set Workers", o.Prefetch),
		errorIf(o.Workers > 0 && o.Workers > math.MaxInt32/max(1, o.Prefetch),
			"Workers × Prefetch is %d × %d, must be less than 2^31", o.Workers, o.Prefetch),
		errorIf(strings.ToValidUTF8(o.DataVersion, "") != o.DataVersion,
			"DataVersion is %q, must be UTF-8", o.DataVersion),
		errorIf(o.Tail < PadTail || o.Tail > UnevenTail,
			"Tail is %d, must be PadTail, DropTail or UnevenTail", o.Tail),
		err)
	if err != nil {
		return o, fmt.Errorf("dataloader: Options.%w", err)
	}
	o.BatchSize = cmp.Or(o.BatchSize, 1)
	if o.Shuffle {
		o.Sampler = Random(n, o.Seed)
	} else if o.Sampler == nil && !batched {
		o.Sampler = Sequential(n)
	}
	return o, nil
}

// panicIf panics if an argument can never be right. Arguments that may come
// from data, flags or files are errors.
func panicIf(bad bool, format string, args ...any) {
	if bad {
		panic("dataloader: " + fmt.Sprintf(format, args...))
	}
}

// errorIf returns an error if an argument is wrong that may come from data,
// flags or files.
func errorIf(bad bool, format string, args ...any) error {
	if bad {
		return fmt.Errorf(format, args...)
	}
	return nil
}

// A DataLoader loads batches of type B. It is safe for concurrent use: several
// loops over it, nested or in several goroutines, do not affect each other,
// because it keeps no position. PyTorch: DataLoader.
type DataLoader[B any] struct {
	plan
	newBuilder func() builder[B] // returns the builder of a maker

	mu    sync.Mutex // guards the fields below; never held while user code runs
	free  []B        // the batches given back by Recycle
	calls int        // of Batch that have not returned
	// maxFree is the most batches in free; Recycle says what they are for.
	maxFree int
}

// A plan is what a DataLoader knows about the order of its samples. It does not
// depend on the type of a batch, so that pass and worker need no type
// parameter, and are compiled once. It is set by New, and only read afterwards.
type plan struct {
	opts      Options
	samples   int                       // in the data set
	deal      deal                      // of a whole epoch
	name      string                    // describes the order, for cursors
	state     *loaderState              // the State of its own cursors whose Done is empty
	indicesOf func(epoch int) indicesAt // the order of an epoch
}

// New makes a loader of the samples of data, which collate makes into batches.
// Unlike with NewBatchFunc, each sample has its own Rand, and OnError is asked
// about each sample that fails. New calls data.Len once. Options that make no
// sense, or leave no rank a batch, are an error that names the field, its value
// and what is allowed. An empty data set is not an error; it yields no batches.
func New[T, B any](data Dataset[T], collate Collate[T, B], opts Options) (*DataLoader[B], error) {
	if data == nil {
		return nil, errors.New("dataloader: the data set is nil")
	}
	if collate == nil {
		return nil, errors.New(
			"dataloader: the Collate is nil; List makes a slice of the samples")
	}
	return loaderOf(data.Len(), opts, func() builder[B] { return fetchAndCollate(data, collate) })
}

// NewBatchFunc makes a loader of n samples. The function load makes each batch
// from the samples with the given indices, in their order. It may build the
// batch in the memory of dst, as append does: dst is a batch that the caller
// has given back with DataLoader.Recycle, or the zero value. load must not
// retain indices, which are reused for the next batch.
//
// Use NewBatchFunc if samples must be read or decoded: load writes them
// straight into their batch, where New would allocate and copy each of them.
// Use it also if a whole batch comes in one call, as from a database (the
// recipe Example_database). load may copy from a file that is mapped into
// memory. On warm pages that takes half as long as ReadAt, or less. But if the
// file is truncated meanwhile, a signal ends the program, where ReadAt returns
// an error.
//
// With workers load runs in several goroutines at once, on different batches.
// Rand(ctx) is the generator of the batch, so its samples have none of their
// own. An error of load, or a panic, fails the batch, with Index -1. OnError is
// not asked, so load itself decides about a bad sample. Split and Concat need a
// Dataset; load may map the indices to those of a part instead. Everything else
// is as in New. PyTorch: __getitems__.
func NewBatchFunc[B any](
	n int, load func(ctx context.Context, dst B, indices []int) (B, error), opts Options,
) (*DataLoader[B], error) {
	if load == nil {
		return nil, errors.New("dataloader: NewBatchFunc: load is nil")
	}
	build := func(m *maker, dst B) (B, error) {
		defer trace.StartRegion(m.ctx, "load").End()
		first := m.spots[0]
		// The spot of the batch, which no sample has.
		m.scope.setSpot(spot{first.epoch, first.pos, math.MaxUint64})
		m.loaded = append(m.loaded, m.indices...)
		return load(m.ctx, dst, m.indices)
	}
	return loaderOf(n, opts, func() builder[B] { return build })
}

// loaderOf makes the loader of n samples. newBuilder returns a builder for each
// maker.
func loaderOf[B any](
	n int, opts Options, newBuilder func() builder[B],
) (*DataLoader[B], error) {
	l := &DataLoader[B]{newBuilder: newBuilder}
	if err := l.setOrder(n, opts); err != nil {
		return nil, err
	}
	l.maxFree = min(l.opts.Workers*l.opts.Prefetch, l.Len()) + 2
	return l, nil
}

// setOrder sets the order of n samples, and how the order is dealt out.
func (p *plan) setOrder(n int, opts Options) error {
	if n < 0 {
		return fmt.Errorf("dataloader: the number of samples is %d, must not be negative", n)
	}
	o, err := opts.withDefaults(n)
	if err != nil {
		return err
	}
	var order interface{ Len() int }
	if o.BatchSampler != nil {
		order, p.indicesOf = o.BatchSampler, indicesOfBatches(keepTwo(o.BatchSampler.Batches))
	} else {
		order, p.indicesOf = o.Sampler, indicesOfSamples(keepTwo(o.Sampler.Order))
	}
	count := order.Len()
	if count < 0 || count > math.MaxInt/2 {
		return fmt.Errorf("dataloader: the length of %T is %d, must be 0 to %d",
			order, count, math.MaxInt/2)
	}
	p.opts, p.samples, p.name = o, n, describe(order)
	// All larger sizes make the same one batch, but products of them could
	// overflow.
	size := min(o.BatchSize, count+1)
	p.deal = deal{n: count, size: size, rank: o.Rank, tail: o.Tail, dropLast: o.DropLast}.start(0)
	p.state = &loaderState{By: p.name, Seed: o.Seed, Data: o.DataVersion}
	if o.Unordered {
		p.state.Rank, p.state.Size = &p.deal.rank, size
	} else if o.OnError != nil && o.Tail == UnevenTail && o.Rank.Count > 1 {
		p.state.Rank = &p.deal.rank // a rank may skip a batch that the others have
	}
	return p.checkOrder(needOf(order))
}

// checkOrder says why the order does not fit the samples, or why no rank has a
// batch.
func (p *plan) checkOrder(needs need) error {
	n, o := p.samples, &p.opts
	first := p.deal // of the rank that has the most batches
	first.rank.Index = 0
	return cmp.Or(
		errorIf(n < needs.samples || needs.exactly && n > needs.samples,
			"dataloader: Options: %s is for %d samples, the data set has %d; "+
				"Weighted needs a weight for each sample, Buckets a length, "+
				"and other orders an n of at most %[3]d", p.name, needs.samples, n),
		errorIf(n > 0 && p.deal.n == 0,
			"dataloader: Options: %s is empty, and there are %d samples", p.name, n),
		errorIf(n > 0 && first.start(0).steps() == 0,
			"dataloader: Options leave no batch of %d samples: %s, BatchSize %d, "+
				"DropLast %t, Rank.Count %d, DropTail %t; use smaller batches or fewer ranks",
			n, p.name, o.BatchSize, o.DropLast, o.Rank.Count, o.Tail == DropTail))
}

// Len returns the number of batches in an epoch of this rank.
func (l *DataLoader[B]) Len() int {
	l.mustExist()
	return l.deal.steps()
}

// mustExist panics if there is no loader, because New has returned an error
// instead.
func (l *DataLoader[B]) mustExist() {
	panicIf(l == nil, "the loader is nil; look at the error of New")
}

// Epoch returns the batches of one epoch, from its start. The same epoch has
// the same order again, unless the loader is Unordered. With Shuffle each epoch
// has an order of its own. Errors are those of Run.
func (l *DataLoader[B]) Epoch(ctx context.Context, epoch int) iter.Seq2[B, error] {
	return func(yield func(B, error) bool) { l.Run(ctx, &Cursor{Epoch: epoch})(yield) }
}

// Run returns the batches from *at to the end of its epoch, and keeps *at
// current. While the body of the loop has a batch, *at is the cursor after that
// batch, so a checkpoint saved in the body resumes with the next batch. When
// the loop has ended *at is the start of the next epoch. After a break it stays
// where it is. The caller must not change *at, or pass it to another Run, while
// the loop runs.
//
// If a batch fails, the loop gets a *SampleError, which errors.As finds, and
// may go on. *at then stays before the failed batch, so a checkpoint saved in
// the body tries that batch again. With the next success, or at the end of the
// epoch, *at moves on.
//
// Any other error ends the loop and leaves *at unchanged. There are four
// causes: the context has ended (the error is context.Cause), the cursor does
// not fit, the sampler has no order for the epoch, or Options.Trace has
// panicked. A loop over epochs must end at such an error too, because *at does
// not move. So must a caller of iter.Pull2: the sequence ends after the error,
// but the epoch is not complete.
//
// When the last batch has been handed over the epoch is complete, even if the
// context ends then. Exception: if OnError drops every batch that would still
// follow, the loop may end with the context's error. That error comes when the
// Gets that run have returned, so a Get that hangs delays it; the recipe
// Example_signal saves a checkpoint all the same.
//
// Ranging again over the same sequence continues at *at: after a complete
// epoch, with the next one. A range with one variable loses the errors, and
// gets a zero batch for each.
func (l *DataLoader[B]) Run(ctx context.Context, at *Cursor) iter.Seq2[B, error] {
	l.mustExist()
	items := func(from Cursor) iter.Seq2[Item[B], error] { return l.items(ctx, from) }
	return follow(items, at)
}

// At returns the cursor before batch k of an epoch: for a run that was saved
// with its step number only. k may be Len() and more, which means a later
// epoch, so At(0, step) is the place after step batches of this loader, as long
// as its options are the same. At panics if epoch or k is negative or too
// large.
func (l *DataLoader[B]) At(epoch, k int) Cursor {
	n := l.Len()
	panicIf(epoch < 0 || k < 0, "At: epoch is %d and k is %d, must not be negative", epoch, k)
	if n > 0 {
		panicIf(epoch >= math.MaxInt-k/n, "At: epoch is %d and k is %d, which is too far", epoch, k)
		epoch, k = epoch+k/n, k%n
	}
	if pos := l.deal.after(k); pos > 0 {
		return Cursor{epoch, pos, l.state}
	}
	return Cursor{Epoch: epoch}
}

// Batch loads batch k of an epoch, 0 <= k < Len(), in the calling goroutine:
// the batch that a loop over the epoch yields at its turn k. Step s of a
// training is Batch(ctx, s/Len(), s%Len()). Loops that are running are not
// disturbed, but Batch takes memory that was given back: Recycle the batch, if
// the loop counts on it. Batch asks Options.OnError, and does not call
// Options.Trace.
//
// Batch may be called in several goroutines at once, as a server does (the
// recipe Example_servedBatches). In all of them Worker returns -1, so what
// serves one goroutine at a time, such as a decoder, is kept in a sync.Pool,
// not by the worker's number. Calls for one epoch share its order. Two orders
// are kept: of the last even epoch that was asked for, and of the last odd one.
// If the order has a table, and two clients are in epochs 0 and 2, nearly every
// call makes it anew: for 10⁶ samples in 7 ms with TorchRandom, in 88 ms with
// Weighted without replacement. Give each training a loader of its own.
func (l *DataLoader[B]) Batch(ctx context.Context, epoch, k int) (B, error) {
	if k >= l.Len() || k < 0 || epoch < 0 {
		return *new(B), fmt.Errorf("dataloader: batch %d of epoch %d: "+
			"epochs begin at 0, and have %d batches", k, epoch, l.Len())
	}
	p, err := l.resume(Cursor{Epoch: epoch})
	if err != nil {
		return *new(B), finalError(err)
	}
	t := task[B]{step: k}
	if ctx.Err() == nil {
		l.countCalls(1)
		defer l.countCalls(-1)
		t.batch = l.recycled()
		m := &maker{worker: newWorker(ctx, -1, l.opts.Seed), pass: p}
		makeBatch(m, &t, l.newBuilder())
	}
	if ctx.Err() != nil {
		return *new(B), finalError(context.Cause(ctx))
	}
	settle(p, &t)
	if t.err == nil && t.timing.Samples == 0 {
		l.Recycle(t.batch)
		return *new(B), p.sampleError(k, -1, errors.New("all samples were dropped"))
	}
	return t.batch, t.err
}

// countCalls adds n to the number of calls of Batch that have not returned.
func (l *DataLoader[B]) countCalls(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls += n
	l.maxFree = max(l.maxFree, l.calls+2)
}

// Recycle gives back the memory of a batch that this loader has made, for a
// later batch to be built in. The caller must not use b, or what b refers to,
// afterwards. Recycle a batch once: a second time makes two later batches share
// its memory. Recycle is optional, and pays for large batches.
//
// A loop that recycles each batch in its body needs the memory of Workers ×
// Prefetch + 1 batches: the window in flight, and the one in the body. A loop
// that recycles a batch only after it has the next one needs memory for one
// batch more. The loader keeps at most that number, Workers × Prefetch + 2, or
// two more than there have been calls of Batch at once. The garbage collector
// gets the rest, the memory of batches that fail, and that of batches in flight
// when a loop is left.
func (l *DataLoader[B]) Recycle(b B) {
	l.mustExist()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.free) < l.maxFree {
		l.free = append(l.free, b)
	}
}

// recycled returns the memory of a batch that was given back, or the zero
// batch.
func (l *DataLoader[B]) recycled() (b B) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := len(l.free) - 1; last >= 0 {
		b, l.free[last] = l.free[last], b
		l.free = l.free[:last]
	}
	return b
}

// items returns the batches that follow a cursor, as a Stream does: one
// iteration over the rest of an epoch.
func (l *DataLoader[B]) items(ctx context.Context, from Cursor) iter.Seq2[Item[B], error] {
	return func(yield func(Item[B], error) bool) {
		p, err := l.resume(from)
		if err != nil {
			yield(Item[B]{}, err)
			return
		}
		// There are no more workers, and there is no larger window, than steps.
		workers := min(l.opts.Workers, p.steps)
		window := max(1, min(l.opts.Workers*l.opts.Prefetch, p.steps))
		it := &iteration[B]{ctx, l, p, make([]task[B], window+1), yield, nil}
		e := engine{
			workers:  workers,
			window:   window,
			ordered:  !l.opts.Unordered,
			seed:     l.opts.Seed,
			nextTask: it.nextTask,
			newWork:  it.newWork,
		}
		e.run(ctx, it.deliver)
		if it.err != nil {
			yield(Item[B]{}, it.err) // not an Item's Err, which may be skipped
		}
	}
}

// An iteration is one loop over the rest of an epoch. Its fields belong to the
// loop, but a slot belongs to whoever has received its number. PyTorch:
// _MultiProcessingDataLoaderIter.
type iteration[B any] struct {
	ctx    context.Context
	loader *DataLoader[B]
	pass   *pass
	slots  []task[B]
	yield  func(Item[B], error) bool
	err    error // why the loop cannot be continued
}

// nextTask puts the next task into a slot, or reports that there is none.
func (it *iteration[B]) nextTask(slot int) bool {
	t, p := &it.slots[slot], it.pass
	t.step = p.nextStep()
	if t.step >= p.steps {
		return false
	}
	t.batch = it.loader.recycled()
	t.timing.Sent = p.traceTime()
	return true
}

// newWork returns the function with which a worker makes the batch in a slot.
func (it *iteration[B]) newWork(w worker) func(slot int) {
	m, build := &maker{worker: w, pass: it.pass}, it.loader.newBuilder()
	return func(slot int) { makeBatch(m, &it.slots[slot], build) }
}

// deliver hands over the batch in a slot. It returns false if the loop ends:
// the body has left it, or err says why.
func (it *iteration[B]) deliver(slot int) bool {
	t, p, l := &it.slots[slot], it.pass, it.loader
	t.timing.Received = p.traceTime()
	if it.ctx.Err() != nil {
		it.err = context.Cause(it.ctx)
		return false
	}
	settle(p, t)
	p.markDone(t.step)
	if l.opts.Trace != nil {
		l.opts.Trace(p.timing(t.timing))
	}
	more := true
	if t.err != nil || t.timing.Samples > 0 {
		more = it.yield(Item[B]{t.batch, t.err, p.cursor()}, nil)
	} else { // all samples were dropped, and the batch is skipped
		l.Recycle(t.batch)
	}
	p.last, p.returned = t.timing, p.traceTime()
	*t = task[B]{} // an empty slot must not keep the batch
	return more
}

// settle completes a task that a worker has done: it asks OnError about the
// samples that failed, fills in the timing, and drops the batch if there is an
// error. Where ranks must take equal steps, a batch that has lost all samples
// fails: if one rank skipped it, the others would wait for ever.
func settle[B any](p *pass, t *task[B]) {
	if err := p.askOnError(t.step, t.failed); err != nil {
		t.err = err
	}
	equalSteps := p.deal.rank.Count > 1 && p.deal.tail != UnevenTail
	if t.err == nil && t.timing.Samples == 0 && equalSteps {
		t.err = p.sampleError(t.step, -1, errors.New("all samples were dropped, "+
			"and ranks must take equal steps: take this one with weight 0, or use UnevenTail"))
	}
	t.timing.Epoch, t.timing.Batch = p.epoch, p.firstBatch+t.step
	t.timing.Dropped = len(t.failed)
	if t.err != nil {
		t.batch, t.timing.Samples, t.timing.Dropped = *new(B), 0, 0
	}
}

// A Cursor is a place in an epoch of a loader or a stream, between two items.
// It is all that a loader needs to continue: save it as JSON, with the weights,
// and pass it to Run. The zero Cursor is the start of epoch 0. Cursor{Epoch: e}
// is the start of epoch e, of any loader and stream. A copy of a cursor stays
// valid: Run replaces *at, and never changes its State in place. Compare
// cursors by their String: == may panic, or be false for equal cursors.
// encoding/gob cannot write the State: gob the cursor's JSON.
type Cursor struct {
	Epoch int `json:"epoch"`
	// Pos says how far into the epoch the cursor stands. A stream's Pos grows
	// from item to item. A loader's is the number of positions that all ranks
	// together have consumed. If Unordered, it counts only up to the first
	// batch that has not been handed over. Behind Stream.Shard the Pos differs
	// from rank to rank, so count steps to decide when to save.
	Pos int `json:"pos"`
	// State describes the loader or stream that made the cursor; a different
	// one refuses it. Workers and Prefetch are not part of the description. Nor
	// are Rank and BatchSize, unless Unordered is set or the ranks are out of
	// step (see Stream.Shard): with others the rest of the epoch comes in other
	// batches, with the same random numbers. With NewBatchFunc the random
	// numbers belong to the batch, so they change with its size. The
	// description has lengths, seeds and Options.DataVersion, but not the
	// content of the data. A stream may also keep data of its own in State.
	// Where ranks are out of step, State is the rank and, in it, the State of
	// the stream. At the start of an epoch State is nil. In a cursor decoded
	// from JSON it is a json.RawMessage, which Load decodes.
	State any `json:"state,omitempty"`
}

// ErrCursor is wrapped by every error that refuses a cursor. Another loader or
// stream has made the cursor, its source has changed, it is damaged, or it is
// JSON of something else. A program can report the error and begin the epoch
// again. A text that is not JSON is refused by json.Unmarshal, with an error of
// its own.
var ErrCursor = errors.New("refused cursor")

// UnmarshalJSON decodes a cursor, but leaves its State raw, because only the
// maker of the cursor knows its type. A missing epoch, a state without pos, and
// unknown fields are errors: JSON of another kind must not be taken for the
// start of epoch 0. null leaves *c as it is.
//
// If a struct embeds a Cursor, this method reads the whole struct, and refuses
// its other fields. To read a file that was written so, decode epoch, pos and
// state into a struct, state as a json.RawMessage, and make a Cursor of them.
func (c *Cursor) UnmarshalJSON(data []byte) error {
	var f *struct { // nil for null; a field is nil if it is missing, or null
		Epoch, Pos *int
		State      *json.RawMessage
	}
	switch err := decodeStrictly(data, &f); {
	case errors.As(err, new(*json.UnmarshalTypeError)), errors.As(err, new(*json.SyntaxError)):
		return fmt.Errorf("dataloader: %w: this is JSON of something else: %w", ErrCursor, err)
	case err != nil:
		return fmt.Errorf("dataloader: %w: this is JSON of something else: %w; "+
			"keep the cursor in a field of its own, and do not embed it", ErrCursor, err)
	case f == nil:
		return nil
	case f.Epoch == nil:
		return fmt.Errorf("dataloader: %w: its JSON has no epoch; "+
			"the start of a run is the zero Cursor, or {\"epoch\": 0}", ErrCursor)
	case f.Pos == nil && f.State != nil:
		return fmt.Errorf("dataloader: %w: its JSON has a state and no pos: it is damaged",
			ErrCursor)
	}
	*c = Cursor{Epoch: *f.Epoch}
	if f.Pos != nil {
		c.Pos = *f.Pos
	}
	if f.State != nil {
		c.State = *f.State
	}
	return nil
}

// decodeStrictly decodes JSON into *value. A field that *value lacks is an
// error.
func decodeStrictly(data []byte, value any) error {
	err := json.Unmarshal(data, new(json.RawMessage)) // Decode does not look behind the value
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode(value)
}

// Load decodes State into *state. It always goes through JSON, so a fresh
// cursor and a saved one give the same result, which shares no memory with the
// cursor. Integers are exact in any integer type. If State is nil, *state stays
// as it is.
func (c Cursor) Load(state any) error {
	if c.State == nil {
		return nil
	}
	data, err := json.Marshal(c.State)
	if err == nil {
		err = json.Unmarshal(data, state)
	}
	if err != nil {
		return fmt.Errorf("dataloader: %w {epoch %d, pos %d}: its state does not fit: %w",
			ErrCursor, c.Epoch, c.Pos, err)
	}
	return nil
}

// String returns the cursor as JSON with sorted keys. Cursors with the same
// String are the same place, whether they are fresh or come from JSON.
func (c Cursor) String() string {
	var fields any
	data, err := json.Marshal(c)
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err == nil {
		err = decoder.Decode(&fields)
	}
	if err == nil {
		data, err = json.Marshal(fields)
	}
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// atStart reports whether c is the start of an epoch, which fits any loader and
// stream.
func (c Cursor) atStart() bool { return c.Pos == 0 && c.State == nil }

// fit decodes the State of a cursor into *state, or says why the cursor does
// not fit the loader or stream described by name. *by, a field of *state, then
// describes the cursor's maker.
func (c Cursor) fit(name string, by *string, state any) error {
	if c.Epoch < 0 || c.Epoch == math.MaxInt || c.Pos < 0 {
		return c.refuse("epoch and pos must not be negative, and epoch must be less than %d",
			math.MaxInt)
	}
	if c.atStart() {
		return nil
	}
	if c.State == nil {
		return c.refuse("it has no State; " +
			"in the middle of an epoch use a cursor of Run, or for a DataLoader one of its At")
	}
	if err := c.Load(state); err != nil {
		return err
	}
	if *by != name {
		return c.refuse("it was made by %s, this is %s; use the same data and options, "+
			"or start at Cursor{Epoch: %d}, or at Cursor{Epoch: %d} if the epoch was complete",
			cmp.Or(*by, "another stream"), name, c.Epoch, c.Epoch+1)
	}
	return nil
}

// refuse returns the error of a cursor that does not fit.
func (c Cursor) refuse(format string, args ...any) error {
	return fmt.Errorf("dataloader: %w {epoch %d, pos %d}: %s",
		ErrCursor, c.Epoch, c.Pos, fmt.Sprintf(format, args...))
}

// refuseRank returns the error of a cursor that another rank has made. parting
// says what puts the ranks out of step.
func (c Cursor) refuseRank(owner, here any, parting string) error {
	return c.refuse("it was made by rank %v, this is rank %v, and %s puts the ranks out of step: "+
		"save one cursor for each rank, and resume as many ranks", owner, here, parting)
}

// An Item is a value and the cursor just after it. A failed item has an Err and
// the zero Value; it is a position like any other.
type Item[T any] struct {
	Value T
	Err   error
	Next  Cursor
}

// follow returns the values of the items from *at on, and keeps *at current.
func follow[T any](
	items func(from Cursor) iter.Seq2[Item[T], error], at *Cursor,
) iter.Seq2[T, error] {
	panicIf(at == nil, "Run: the cursor is nil; pass the address of one, such as new(Cursor)")
	return func(yield func(T, error) bool) {
		if err := handOver(items, at, yield); err != nil {
			yield(*new(T), finalError(err))
		}
	}
}

// handOver passes the values of items to the body of a loop, until the body
// leaves the loop or there are no more. It returns why the loop cannot be
// continued, or nil. In an epoch of three batches, the second of which fails:
//
//	the body gets  batch 0  a SampleError  batch 2  (the end)
//	*at is after   batch 0  batch 0        batch 2  the epoch: {Epoch: epoch + 1}
//
// If items panics, handOver returns the panic as the last error: with workers
// the same panic happens in another goroutine, which can only report it as an
// error. handOver does not recover a panic of the body, or one that comes after
// the body has left.
//
// The documentation of errgroup argues against turning panics into errors: the
// error may hide that the program is broken. Here the error keeps the panic's
// value and stack, and one broken file among a million must not end a run of
// ten days.
func handOver[T any](
	items func(from Cursor) iter.Seq2[Item[T], error], at *Cursor, yield func(T, error) bool,
) (end error) {
	// Whether a panic now is one of items: the body does not run, and has not
	// left the loop.
	ours := true
	defer func() {
		if !ours {
			return
		}
		if r := recover(); r != nil {
			bad := &PanicError{r, debug.Stack(), placeOfPanic()}
			end = fmt.Errorf("dataloader: epoch %d: %w", at.Epoch, bad)
		}
	}()
	epoch := at.Epoch
	for item, err := range items(*at) {
		if err != nil {
			return err
		}
		if item.Err != nil {
			err = itemError(item.Next, item.Err)
		} else {
			*at = item.Next
		}
		ours = false
		if !yield(item.Value, err) {
			return nil
		}
		ours = true
	}
	*at = Cursor{Epoch: epoch + 1}
	return nil
}

// itemError returns err, the error of the item before next, as a *SampleError
// that says where the loop is.
//
// If err itself, and not an error that it wraps, is a *SampleError, it comes
// from the loader at the source; stages pass it on unchanged. It stays as it is
// if the loader itself has made next. Behind a stage that makes its own
// cursors, the loader's epoch and batch are not those of the loop, so only the
// sample's index is kept. If a user's function runs a loop of its own that
// fails, the stage has wrapped the error, and the place in it is ignored.
func itemError(next Cursor, err error) *SampleError {
	e := &SampleError{Epoch: next.Epoch, Batch: -1, Index: -1, Pos: next.Pos, Err: err}
	if source, ok := err.(*SampleError); ok {
		if own, ok := next.State.(interface{ ofLoader() bool }); ok && own.ofLoader() {
			return source
		}
		e.Index, e.Err = source.Index, source.Err
	}
	return e
}

// finalError returns err, the last error of a loop, so that errors.As finds no
// *SampleError in it. The cause of a cancelled context can be a *SampleError,
// for example that of another loop. A loop that skips each *SampleError must
// not skip its last error: it would begin the epoch again, for ever.
func finalError(err error) error {
	if found := (*SampleError)(nil); errors.As(err, &found) {
		return unskippable{err}
	}
	return err
}

// An unskippable is an error that wraps another one, in which errors.As finds
// everything but a *SampleError.
type unskippable struct{ error }

// Is reports whether the wrapped error is target.
func (u unskippable) Is(target error) bool { return errors.Is(u.error, target) }

// As sets *target to an error in the wrapped one, unless target is a
// **SampleError.
func (u unskippable) As(target any) bool {
	_, hidden := target.(**SampleError)
	return !hidden && errors.As(u.error, target)
}

// A loaderState is the State in a loader's cursors. A loader with another By,
// Seed or Data refuses the cursor.
type loaderState struct {
	By   string `json:"by"`             // describes the order
	Seed uint64 `json:"seed,omitempty"` // of Rand
	Data string `json:"data,omitempty"` // Options.DataVersion
	// Done lists the steps that have been handed over out of order, counted
	// from Pos. Rank and Size, the batch size, say what a step is. Loaders with
	// Options.Unordered always set both: each rank has handed over other
	// batches, so another rank's cursor does not fit. Rank is also set if
	// OnError puts the ranks out of step.
	Done []span `json:"done,omitempty"`
	Rank *Rank  `json:"rank,omitempty"`
	Size int    `json:"size,omitempty"`
}

// ofLoader is for itemError.
func (s *loaderState) ofLoader() bool { return true }

// span{a, b} is the steps a <= k < b.
type span [2]int

// A pass is one loop's way through the rest of an epoch. It counts its steps,
// which are the rank's batches, from where the loop began. The steps that have
// been handed over are kept as spans. The first span begins at step 0, and may
// be empty; where it ends is the low-water mark. A pass in order has no other
// span, unless its cursor was saved out of order. Out of order there may be:
//
//	step   0 1 2 3 4 5 6 7 8 9          handed over: 0, 1, 3, 4, 7
//	       x x . x x . . x . .          done = {0, 2}, {3, 5} and {7, 8}
//	           ^
//	           the low-water mark
type pass struct {
	// Set by resume, and only read afterwards.
	plan      *plan
	epoch     int
	deal      deal
	indicesAt indicesAt
	// firstBatch is the number of step 0's batch in the epoch. It is
	// approximate if ranks × BatchSize has changed since the cursor.
	firstBatch int
	steps      int

	// These belong to the loop.
	next int    // the next step to send, unless it is done
	done []span // the steps that have been handed over; sorted, no two touch
	last Timing // of the batch before; zero for the first
	// returned is when the body returned last, at first when the pass began,
	// and zero without Trace.
	returned time.Time
}

// resume begins a pass at a cursor, or says why the cursor does not fit, or why
// the epoch has no order.
func (p *plan) resume(from Cursor) (*pass, error) {
	var s loaderState
	if err := from.fit(p.name, &s.By, &s); err != nil {
		return nil, err
	}
	d := p.deal.start(min(from.Pos, p.deal.n))
	rest := &pass{
		plan:       p,
		epoch:      from.Epoch,
		deal:       d,
		firstBatch: from.Pos / d.size / d.rank.Count,
		steps:      d.steps(),
		done:       append([]span{{}}, s.Done...),
	}
	rest.returned = rest.traceTime()
	err := rest.checkCursor(from, &s)
	if err != nil {
		return nil, err
	}
	err = try(func() error {
		rest.indicesAt = p.indicesOf(rest.epoch)
		return nil
	})
	if err != nil && rest.steps > 0 { // no steps need no order
		return nil, fmt.Errorf("dataloader: epoch %d: the sampler: %w", rest.epoch, err)
	}
	return rest, nil
}

// checkCursor says why the cursor at which the pass begins does not fit,
// although its order does.
func (p *pass) checkCursor(from Cursor, s *loaderState) error {
	// A cursor made out of order fits only its own batch size.
	outOfOrder := s.Rank != nil && s.Size > 0
	switch o := &p.plan.opts; {
	case !from.atStart() && s.Seed != o.Seed:
		return from.refuse("it was made with Options.Seed %d, this loader has Options.Seed %d",
			s.Seed, o.Seed)
	case s.Data != "" && o.DataVersion != "" && s.Data != o.DataVersion:
		return from.refuse("it was made with Options.DataVersion %q, this loader has %q",
			s.Data, o.DataVersion)
	case from.Pos > p.deal.n:
		return from.refuse("pos must be at most %d", p.deal.n)
	case outOfOrder && (*s.Rank != p.deal.rank || s.Size != p.deal.size):
		return from.refuse("it was made out of order by rank %v with batches of %d, "+
			"this loader is rank %v with batches of %d",
			*s.Rank, s.Size, p.deal.rank, p.deal.size)
	case !outOfOrder && len(s.Done) > 0:
		return from.refuse("its state is damaged: steps that are done need a rank and a size")
	case s.Rank != nil && *s.Rank != p.deal.rank:
		return from.refuseRank(*s.Rank, p.deal.rank, "OnError under UnevenTail")
	}
	for i, d := range s.Done {
		before := p.done[i] // a span that touches it, or has step 0, would be part of it
		if d[0] <= before[1] || d[1] <= d[0] || d[1] > p.steps {
			return from.refuse("its state is damaged, or of another DropLast or Tail: "+
				"%v are not steps of %d", s.Done, p.steps)
		}
	}
	return nil
}

// traceTime returns the time if Trace is set, and zero otherwise.
func (p *pass) traceTime() (now time.Time) {
	if p.plan.opts.Trace != nil {
		now = time.Now()
	}
	return now
}

// nextStep returns the next step to send; p.steps or more means that there is
// none. It passes over the steps that had been handed over before the loop was
// resumed.
func (p *pass) nextStep() int {
	for _, d := range p.done {
		if d[0] <= p.next && p.next < d[1] {
			p.next = d[1]
		}
	}
	p.next++
	return p.next - 1
}

// askOnError asks OnError about the samples of a step that failed, in their
// order. It returns the first error of OnError, which fails the batch.
func (p *pass) askOnError(step int, failed []*SampleError) error {
	for _, bad := range failed {
		err := try(func() error { return p.plan.opts.OnError(bad) })
		if err == bad { // what OnError was given needs no other place
			return bad
		}
		if err != nil {
			return p.sampleError(step, bad.Index, fmt.Errorf("OnError: %w", err))
		}
	}
	return nil
}

// markDone notes that a step is handed over, which was not done before. The
// step is added to the span that ends there, or otherwise to a new one, and
// that span is joined to the next one if the two touch. In the picture above:
//
//	markDone(6)  a new span {6, 7} is joined to {7, 8}:
//	             done = {0, 2}, {3, 5} and {6, 8}
//	markDone(2)  {0, 2} becomes {0, 3}, and is joined to {3, 5}:
//	             the low-water mark moves to 5
func (p *pass) markDone(step int) {
	i := len(p.done) - 1
	for p.done[i][0] > step {
		i--
	}
	if p.done[i][1] < step {
		i++
		p.done = slices.Insert(p.done, i, span{step, step})
	}
	p.done[i][1]++
	next := i + 1
	if next < len(p.done) && p.done[i][1] == p.done[next][0] {
		p.done[i][1] = p.done[next][1]
		p.done = slices.Delete(p.done, next, next+1)
	}
}

// timing completes the timing of a batch that the loop has received.
func (p *pass) timing(t Timing) Timing {
	t.Wait = t.Received.Sub(p.returned)
	t.Body = p.returned.Sub(cmp.Or(p.last.Received, p.returned))
	t.First = p.last == Timing{}
	return t
}

// cursor returns the place after the steps that have been handed over.
func (p *pass) cursor() Cursor {
	mark := p.done[0][1]
	c := Cursor{p.epoch, p.deal.after(mark), p.plan.state}
	if len(p.done) > 1 {
		s := *p.plan.state
		s.Rank, s.Size = &p.deal.rank, p.deal.size
		for _, d := range p.done[1:] {
			s.Done = append(s.Done, span{d[0] - mark, d[1] - mark})
		}
		c.State = &s
	}
	return c
}

// sampleError returns the error of the batch at a step, for the sample with the
// given index.
func (p *pass) sampleError(step, index int, err error) *SampleError {
	return &SampleError{Epoch: p.epoch, Batch: p.firstBatch + step, Index: index, Err: err}
}

// A SampleError says which batch of a loader, or which item of a stream, has
// failed, and why. A loop over Run or Epoch may skip a *SampleError. Every
// other error is the last.
//
// Epoch, Batch and Pos say where the loop is. In a loop over a stream they are
// those of the stream that the loop reads, not of a stream or loader that it is
// made of. Only Index is that of the loader at the source, if the stages pass
// its error on. After a resume on another number of ranks Batch is approximate.
type SampleError struct {
	Epoch int
	// Batch is the batch of this rank, from 0, also in the loader's stream. It
	// is -1 for any other item of a stream.
	Batch int
	// Index is the sample's index in the data set. It is -1 if the batch or the
	// item failed as a whole.
	Index int
	Pos   int   // if Batch is -1, the Pos of the cursor after the item
	Err   error // the cause: what Get returned, a PanicError, a TarError, …
}

// Error names the epoch, the batch or the item, and the sample if Index says
// which. The prefix "dataloader: " comes once, also if Err has one of its own.
func (e *SampleError) Error() string {
	where := fmt.Sprintf("epoch %d, batch %d", e.Epoch, e.Batch)
	if e.Batch < 0 {
		where = fmt.Sprintf("epoch %d, the item before pos %d", e.Epoch, e.Pos)
	}
	if e.Index >= 0 {
		where += fmt.Sprintf(", sample %d", e.Index)
	}
	return "dataloader: " + where + ": " + strings.ReplaceAll(fmt.Sprint(e.Err), "dataloader: ", "")
}

// Unwrap returns the cause.
func (e *SampleError) Unwrap() error { return e.Err }

// A Timing says what happened to one batch, and when.
type Timing struct {
	Epoch, Batch int // the batch of this rank, from 0
	Worker       int // the worker that loaded the batch, or -1
	Samples      int // the number of samples in the batch; 0 if it failed
	Dropped      int // the number of samples that OnError dropped; 0 if the batch failed

	Sent     time.Time // when the batch was sent to the workers
	Start    time.Time // when a worker took it
	Done     time.Time // when it was loaded
	Received time.Time // when the loop had it

	Wait  time.Duration // how long the loop waited for this batch
	Body  time.Duration // how long the body took with the batch before; 0 if First
	First bool          // whether it is the first batch of a loop
}

// Stats sums up the timings of a loader, and says in one line where the time
// goes. Set Options.Trace to the Observe method of a new(Stats), and print that
// pointer at any time. The zero value is ready for use. Stats is safe for
// concurrent use. Have one Stats for each loader; the times of several loops at
// once add up.
//
// Stats cannot see the garbage collector, which takes time from loading and
// training alike. If a profile shows it, more workers do not help: reuse memory
// by Recycle or NewBatchFunc, or set GOGC=400.
type Stats struct {
	mu                        sync.Mutex // guards the other fields
	batches, failed, loops    int
	samples, dropped, workers int

	loading, waiting, training time.Duration
	// starting is the part of waiting that was for the first batches of loops,
	// and ordering that before these were sent, when the sampler makes the
	// order. blocked is the part during which the batch after the awaited one
	// was ready. awaited is the part during which the awaited batch was loaded;
	// otherwise it had not been taken by a worker, or was handed over.
	starting, ordering, blocked, awaited time.Duration

	last Timing
}

// Observe adds a batch.
func (s *Stats) Observe(t Timing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batches++
	if t.Samples+t.Dropped == 0 {
		s.failed++
	}
	s.samples += t.Samples
	s.dropped += t.Dropped
	s.workers = max(s.workers, t.Worker+1)
	s.loading += t.Done.Sub(t.Start)
	s.waiting += t.Wait
	s.training += t.Body
	waitBegan := t.Received.Add(-t.Wait)
	s.awaited += max(0, min(t.Done.Sub(waitBegan), t.Done.Sub(t.Start)))
	if t.First {
		s.loops++
		s.starting += t.Wait
		s.ordering += max(0, t.Sent.Sub(waitBegan))
	}
	// Until last.Received the loop was blocked, for last.Wait, because the
	// batch before this one was not ready. For the part of that time after
	// t.Done this batch was ready already.
	s.blocked += min(s.last.Wait, max(0, s.last.Received.Sub(t.Done)))
	s.last = t
}

// String returns one line: the number of batches and samples, of samples that
// were dropped and batches that failed; the share of the time in loops that was
// spent waiting for batches, and the share in which the next batch was ready,
// but a slow one before it blocked it; how busy the workers were; and the
// bottleneck, with the number of workers that would be enough.
//
// The time in loops is the waiting and the training. Training is timed from
// batch to batch, so the training after the last batch of a loop counts as the
// mean of the others. If every loop had one batch, nothing is known about
// training.
func (s *Stats) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	timed := s.batches - s.loops
	if timed == 0 {
		return fmt.Sprintf("batches: %d, loops: %d: too few to tell, "+
			"since training is timed between two batches of a loop", s.batches, s.loops)
	}
	step := s.training / time.Duration(timed)
	elapsed := max(1, s.waiting+step*time.Duration(s.batches))
	percent := func(d time.Duration) float64 { return 100 * float64(d) / float64(elapsed) }
	unit := time.Millisecond
	if elapsed < 100*unit {
		unit = time.Microsecond
	}
	text := fmt.Sprintf("%d batches, %d samples (%.0f/s), %d dropped, failed batches: %d; "+
		"waited %.0f %% of %v, %.0f %% with the next batch ready",
		s.batches, s.samples, float64(s.samples)/elapsed.Seconds(), s.dropped, s.failed,
		percent(s.waiting), elapsed.Round(unit), percent(s.blocked))
	busy := percent(s.loading) / float64(max(1, s.workers))
	if s.workers > 0 {
		text += fmt.Sprintf("; workers: %d, %.0f %% busy", s.workers, busy)
	}
	return text + ": " + s.verdict(step, elapsed, busy)
}

// verdict names the bottleneck. step is the time that the loop spends on a
// batch, and busy the share of their time, in percent, in which the workers
// load.
//
// Loading one batch takes perBatch, so perBatch / step workers load as fast as
// the loop trains. That number is rounded up, but not for a twentieth of a
// worker: 2.04 workers are 2. A loop whose steps take less than a thousandth of
// perBatch does not train at all, and no number of workers is enough for it.
func (s *Stats) verdict(step, elapsed time.Duration, busy float64) string {
	perBatch := s.loading / time.Duration(s.batches)
	training := step >= perBatch/100
	enough := math.MaxInt
	if training {
		enough = int(math.Ceil(float64(perBatch)/float64(max(step, 1)) - 0.05))
	}
	cpus := runtime.GOMAXPROCS(0)
	switch {
	case s.samples == 0:
		return "no samples have come"
	case s.waiting < elapsed/10:
		return fmt.Sprintf("the training is the bottleneck, workers needed: %d",
			min(enough, s.workers))
	case s.ordering > s.waiting/2:
		return fmt.Sprintf("most of the waiting is for the order of an epoch; loops: %d", s.loops)
	case s.workers == 0 && enough <= 1:
		return "loading and training take turns, a worker would load during training"
	case enough <= s.workers && s.starting > s.waiting/2:
		return fmt.Sprintf("the loader keeps up after the first batch of a loop; loops: %d",
			s.loops)
	case s.workers > 0 && busy < 75 && s.awaited < s.waiting/2:
		return "most of the waiting is for batches to be handed over: make them larger, " +
			"raise Prefetch, or have no more workers than CPUs if they compute"
	// More workers would only fill the window sooner, and then wait.
	case s.blocked > s.waiting/2 && (busy < 85 || enough <= s.workers):
		return "slow batches block the batches behind them, raise Prefetch or set Unordered"
	case enough <= s.workers:
		return "the loader keeps up on average but not always, raise Prefetch"
	case s.workers > 0 && busy < 75:
		return "a few batches are so slow that the loop waits for them while workers are idle"
	case !training:
		return "the loader is the bottleneck, the loop takes no time of its own"
	case enough > cpus:
		return fmt.Sprintf("the loader is the bottleneck, workers needed: %d, "+
			"if they wait rather than compute; to compute there are %d CPUs", enough, cpus)
	}
	return fmt.Sprintf("the loader is the bottleneck, workers needed: %d", enough)
}

// Second reading: a loader as a stream, and how far a loop has got.

// StreamOf returns a loader as a stream of its batches: to map them, or to mix
// them with those of another loader. It is a function because a method would
// make every program compile all stages for every type of batch.
//
// A loader with Options.Unordered is no stream. What it yields depends on
// timing, and a stage that reads its source again at a resume would lose
// samples and repeat others. Its stream yields only an error that says so.
// StreamOf panics if l is nil.
//
// Any number of ranks, with any batch size, resumes the cursors of the stream,
// as those of the loader, unless the stages behind it put the ranks out of
// step; Stream.Shard says which do. Behind Shuffle and Unbatch, which read
// items again, the number of ranks and the batch size must be the same.
func StreamOf[B any](l *DataLoader[B]) Stream[B] {
	l.mustExist()
	known := ranks{}.deal(l.deal.rank, l.deal.size, l.deal.tail)
	known.counted = true
	if l.opts.Unordered {
		return streamOf(known, func(context.Context, Cursor, func(Item[B]) bool) error {
			return errors.New("dataloader: a loader with Options.Unordered is no stream, " +
				"because a resume could lose samples: use its Run, or leave Unordered unset")
		})
	}
	return Stream[B]{l.items, known}
}

// Progress returns seq, and shows on w how far seq has got: the number of
// items, of total unless that is 0 or less, the rate, the time left, and the
// share of the time in which the loop waited for seq. Values and errors pass
// unchanged. text adds what else you want to see, such as a loss. It is called
// when a line is written, also if no item has come, and must return one line.
//
// total is the number of items in seq. Progress counts from 0, also after a
// resume, so pass the number of items that are left. At a loader's Cursor at,
// l.Len() - k are left, where k is at.Pos / (ranks × BatchSize), or at.Pos /
// ranks under a BatchSampler, rounded up, as in the recipe Example_progressBar.
// The recipe Example_slowStage finds the slow stage of a pipeline.
//
// On a terminal Progress draws a bar, at most ten times a second and when an
// item is done. A line has at most 60 columns, unless the numbers or text are
// long: what has no room is the share of waiting, which the last line always
// has. Elsewhere Progress writes a line, at most every ten seconds. A last line
// comes at the end, also after a break. PyTorch: what tqdm does around a
// DataLoader.
func Progress[B any](
	w io.Writer, total int, seq iter.Seq2[B, error], text ...func() string,
) iter.Seq2[B, error] {
	return progress(w, total, isTerminal(w), seq, text)
}

// isTerminal reports whether w is a terminal, as far as the standard library
// can tell: a character device.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// progress is Progress for a writer that is a terminal, or not. On a terminal
// each line overwrites the line before, and no more: a line that is wider than
// the terminal would be two.
func progress[B any](
	w io.Writer, total int, terminal bool, seq iter.Seq2[B, error], text []func() string,
) iter.Seq2[B, error] {
	every, begin, end := 10*time.Second, "", "\n"
	if terminal {
		every, begin, end = time.Second/10, "\r", ""
	}
	return func(yield func(B, error) bool) {
		width := 0 // of the last line
		start := time.Now()
		drawn := start    // the last line
		returned := start // from the loop's body
		more := true
		m := meter{total: total}
		write := func(end string) {
			line, waited, texts := m.line(terminal), m.waitedShare(), ""
			for _, t := range text {
				texts += ", " + t()
			}
			if end != "\n" && utf8.RuneCountInString(line+waited+texts) > 60 {
				waited = ""
			}
			line += waited + texts
			fmt.Fprintf(w, "%s%-*s%s", begin, width, line, end)
			if terminal {
				width = utf8.RuneCountInString(line)
			}
		}
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
				write(end)
			}
		}
		if more { // the loop has waited for the end of seq
			m.waited += time.Since(returned)
			m.elapsed = time.Since(start)
		}
		write("\n")
	}
}

// A meter says how far a sequence has got.
type meter struct {
	total, count    int
	elapsed, waited time.Duration
}

// line returns the meter as a line, without the share of waiting. On a terminal
// it has a bar in place of the percentage.
func (m meter) line(bar bool) string {
	elapsed := max(m.elapsed, 1)
	text := fmt.Sprint(m.count)
	if m.total > 0 {
		share := min(float64(m.count)/float64(m.total), 1)
		text = fmt.Sprintf("%d/%d ", m.count, m.total)
		if done := int(6 * share); bar {
			text += "[" + strings.Repeat("#", done) + strings.Repeat(".", 6-done) + "]"
		} else {
			text += fmt.Sprintf("%3.0f%%", 100*share)
		}
	}
	rate, format := float64(m.count)/elapsed.Seconds(), " %.3g/s, %s"
	if rate >= 100 {
		format = " %.0f/s, %s"
	}
	text += fmt.Sprintf(format, rate, roundTime(m.elapsed))
	if m.count > 0 && m.count < m.total {
		left := float64(elapsed) / float64(m.count) * float64(m.total-m.count)
		text += fmt.Sprintf(", %s left", roundTime(time.Duration(min(left, 1<<62))))
	}
	return text
}

// waitedShare says how much of the time the loop waited.
func (m meter) waitedShare() string {
	return fmt.Sprintf(", waited %.0f%%", 100*float64(m.waited)/float64(max(m.elapsed, 1)))
}

// roundTime returns a duration with tenths of a second, with seconds from a
// minute on, and with minutes from an hour on.
func roundTime(d time.Duration) string {
	tenths, seconds := d.Round(time.Second/10), d.Round(time.Second)
	switch {
	case tenths < time.Minute:
		return tenths.String()
	case seconds < time.Hour:
		return seconds.String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}
