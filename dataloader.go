// Package dataloader loads samples for machine learning: shuffled, in batches, by several goroutines at
// once, in an order that depends on nothing but a seed and the epoch. It is PyTorch's DataLoader for Go. (It is
// not the batcher of GraphQL queries that has the same name.)
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
//	var at dataloader.Cursor // or one that was saved: the loop goes on there
//	for at.Epoch < 10 {
//		for batch, err := range loader.Run(ctx, &at) {
//			if err != nil {
//				return err
//			}
//			train(batch) // a Tensor of the shape [64, …]
//			save(at)     // as JSON; the checkpoint
//			loader.Recycle(batch)
//		}
//	}
//
// What follows is how that works, with what to read next. It starts from a loop that anybody would write.
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
// Three decisions are in it: what sample i is, in which order samples come, and how some become a batch. Here each is a
// type of its own.
//
// # The data set
//
// A [Dataset] has a length and fetches sample i (PyTorch: Dataset, __len__ and __getitem__). A [Slice] is one, and [Func],
// [Files], [Folder] and [Rows] make others; [Transform], [Cache], [Subset] and [Concat] make one of another. A
// data set is asked for any sample at any time, from several goroutines at once. Read dataset.go.
//
// # The sampler
//
// A [Sampler] says which sample stands at which position of which epoch (PyTorch: Sampler). In the loop above that is a
// table, which depends on all that rng has drawn before. Here it is a function of epoch and position alone: [Random]
// computes a permutation of any length at any position, without a table. Read permutation and feistel in sampler.go.
//
// # The batch
//
// A [Collate] makes a batch of samples (PyTorch: collate_fn): [Stack] copies tensors of one shape into one of a dimension
// more, [Pad] makes sequences equally long, [List] keeps a slice. Like append it may build in memory that was used
// before: [DataLoader.Recycle] gives a batch back. Read Stack in batch.go.
//
// # One goroutine
//
// With Options.Workers = 0 the calling goroutine loads each batch when the loop asks for it (PyTorch:
// _SingleProcessDataLoaderIter). That is the specification: any number of workers gives the same batches, errors and
// random numbers, in the same order, sooner. Read fetcher's load and fetch in dataloader.go, and inline in worker.go.
//
// # Several, out of order
//
// Workers are goroutines that take tasks, the numbers of batches, from a queue, and put results into another, while the
// loop trains. With Options.Unordered (PyTorch: in_order=False) whoever is done first delivers first. How far they may
// run ahead is the window: Workers × Prefetch batches that were asked for and not delivered. Read work in worker.go.
//
// # In order
//
// By default a batch that comes too early waits in the cache until its turn (PyTorch: _MultiProcessingDataLoaderIter, with
// _send_idx, _rcvd_idx and _task_info). Two counters, send and recv, describe it:
//
//	recv <= send <= recv + window
//
//	batch    0 1 2 3 4 5 6 7 8 9 …
//	             ^           ^
//	             recv        send     2 is slow, in a worker; 3, 4 and 6 are in the cache; 5 and 7 in other workers
//
// Each batch between the two is in exactly one place, and there are never more than window of them. So no send ever
// blocks, and memory is bounded even if batch 2 never comes. The picture in the README, and testdata/timeline.txt, show
// the same batches in all three ways. Read engine in worker.go.
//
// # Errors and breaks
//
// A batch that cannot be loaded comes as an error in its place, a [SampleError] that names the epoch, the batch and the
// sample, or holds a [PanicError]; a loop that goes on gets the next batch. Options.OnError may drop a bad sample
// instead. Goroutines live only inside the range: leaving it in any way stops and joins them, and there is nothing to
// close. Read run in worker.go, from its defers on.
//
// # Cursors and checkpoints
//
// A loader has no state; a [Cursor] has. It is a small value that the caller owns and Run keeps current: the epoch, the
// position after the batch in hand, and a description of the order, so that another order is refused. Saved as JSON it
// is the checkpoint, passed to Run the resume, with any number of workers (PyTorch: StatefulDataLoader). Random numbers
// for augmentation, [Rand], depend on the position too. Read Cursor in dataset.go, and DataLoader.open.
//
// # Shards and ranks
//
// When several machines train one model, Options.Shard deals each its part of an epoch: the positions Index, Index+Count,
// … (PyTorch: DistributedSampler; [ShardFromEnv] knows the launchers). Any rank's cursor resumes all of them, and, with
// the same global batch, any number of them; that of an Unordered loop only its own rank. Read deal in sampler.go.
//
// # Streams
//
// What has no indices, or wants a pipeline of its own, is a [Stream]: a function from a cursor to the items that
// follow it, each with the cursor after it (PyTorch: IterableDataset, torchdata.nodes). [FromSeq], [Indices] and [Tar]
// make streams; Shuffle, [Mix], [Map], [Batch], Prefetch and others make one of another; any composition resumes:
//
//	images := dataloader.Map(dataloader.Indices(dataloader.Random(n, seed)), 8, load)
//	batches := dataloader.Batch(images, 64, dataloader.Stack[float32]).Prefetch(2)
//
// Read Stream, Take and staged in dataset.go.
//
// # Tar shards
//
// Many small files are packed into tar shards, which a disk or a web server gives from front to back at full speed
// (PyTorch: webdataset). [Tar] is the stream of their records, whose cursor is a shard and a byte offset; [OpenTar] reads
// them by index, and a [TarWriter] makes them. Whatever is wrong is an error that says where, never a sample less.
// Read next and advance in tar.go.
//
// # Where the time goes
//
// Options.Trace gets a [Timing] for each batch. [Stats] sums them up in one line, which says what the bottleneck is;
// [Progress] shows how far an epoch is. In profiles, goroutines have the label dataloader ("worker 0", "reader", …), and in
// execution traces (go test -trace) each batch of a loader is a task with the regions fetch and collate.
//
// Read the files in this order: dataset.go, sampler.go, batch.go, worker.go, dataloader.go, tar.go.
package dataloader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"runtime"
	"runtime/trace"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options say how a DataLoader loads. The zero value is PyTorch's defaults: one sample a batch, in order,
// in the calling goroutine.
type Options struct {
	// BatchSize is the number of samples in a batch; 0 means 1. PyTorch: batch_size.
	BatchSize int
	// Shuffle takes the order Random(data.Len(), Seed) instead of Sequential. PyTorch: shuffle.
	Shuffle bool
	// Seed is for Shuffle and for Rand. 0 is a seed like any other. PyTorch: generator.
	Seed uint64
	// DropLast leaves out a last batch that is not full. PyTorch: drop_last.
	DropLast bool
	// Sampler is the order of the samples, nil for that of Shuffle, which it excludes. PyTorch: sampler.
	Sampler Sampler
	// BatchSampler is the order of whole batches. It excludes BatchSize, Shuffle, Sampler and DropLast.
	// PyTorch: batch_sampler.
	BatchSampler BatchSampler

	// Shard is the part of each epoch that this rank loads: the positions Index, Index+Count, … of the
	// order, or the batches under a BatchSampler. The zero value is all. PyTorch: DistributedSampler.
	Shard Shard
	// Tail says what happens if the epoch cannot be dealt out evenly; PadTail unless set.
	Tail Tail

	// Workers is the number of goroutines that load; 0 means to load in the calling goroutine, one batch
	// at a time as the loop asks for it. PyTorch: num_workers.
	Workers int
	// Prefetch is the number of batches under way for each worker; 0 means 2. Workers × Prefetch batches
	// are being loaded or ready while the loop body has another. It needs Workers. PyTorch: prefetch_factor.
	Prefetch int
	// Unordered hands over batches as they are ready, so that a slow one holds up no other. Each still
	// comes exactly once, also across a resume. PyTorch: in_order=False.
	Unordered bool

	// OnError, if not nil, is asked about each sample that cannot be fetched, with its index and error. If it
	// returns nil the sample is dropped from its batch, which then is smaller; else the batch fails with
	// what it returns. It is asked when the batch is about to be handed over, so for any number of workers in the
	// same order, and never twice at once. Errors that are not a single sample's (Index -1: collate,
	// GetBatch, the sampler) fail the batch without it. A batch of which nothing is left is not delivered.
	// OnError must not use the loader.
	OnError func(*SampleError) error
	// Trace, if not nil, is called in the loop's goroutine for every batch, just before it is handed over. A
	// failed batch counts too, and one whose samples were all dropped, with Samples 0. A panic in it ends the loop.
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
		badIf(o.BatchSampler != nil && (o.BatchSize != 0 || o.Shuffle || o.Sampler != nil || o.DropLast),
			"Options.BatchSampler excludes BatchSize (%d), Shuffle (%t), Sampler (%t) and DropLast (%t); leave them unset",
			o.BatchSize, o.Shuffle, o.Sampler != nil, o.DropLast),
		badIf(o.Sampler != nil && o.Shuffle, "Options.Sampler excludes Shuffle; a shuffling Sampler is Random"),
		badIf(o.BatchSize < 0, "Options.BatchSize is %d, must be positive, or 0 for 1", o.BatchSize),
		badIf(o.Workers < 0, "Options.Workers is %d, must not be negative; 0 loads in the calling goroutine", o.Workers),
		badIf(o.Prefetch < 0, "Options.Prefetch is %d, must be positive, or 0 for 2", o.Prefetch),
		badIf(o.Prefetch > 0 && o.Workers == 0, "Options.Prefetch is %d without workers; leave it 0 or set Workers", o.Prefetch),
		badIf(o.Workers > math.MaxInt32/prefetch, "Options.Workers × Prefetch is %d × %d, must be less than 2^31", o.Workers, prefetch),
		badIf(o.Tail < PadTail || o.Tail > UnevenTail, "Options.Tail is %d, must be PadTail, DropTail or UnevenTail", o.Tail),
		bad)
	o.Shard, o.Prefetch, o.BatchSize = shard, prefetch, cmp.Or(o.BatchSize, 1)
	return o, bad
}

// A DataLoader loads batches of type B. It is immutable and safe for concurrent use: several loops over
// it, nested or in several goroutines, do not meet. PyTorch: DataLoader.
type DataLoader[B any] struct {
	// Set by New and only read after.
	opts   Options
	deal   deal // of a whole epoch
	name   string
	state  any // a *loaderState with nothing Done, shared by all cursors
	worker func(ctx context.Context, number int, e *epoch) func(*result[B])

	orders epochs[order]
	asking chan struct{} // holds a token while OnError runs

	mu   sync.Mutex // guards free; never held while user code runs
	free []B        // batches given back by Recycle, no more than its capacity
}

// New makes a loader of data, whose samples collate makes into batches. It keeps data.Len() as it is now.
// Options that make no sense are an error that names the field, its value and what is allowed; an empty
// data set is none, and gives no batch.
func New[T, B any](data Dataset[T], collate Collate[T, B], opts Options) (*DataLoader[B], error) {
	if data == nil {
		return nil, errors.New("dataloader: the data set is nil")
	}
	if collate == nil {
		return nil, errors.New("dataloader: the Collate is nil; List makes a slice of the samples")
	}
	opts, err := opts.check()
	if err != nil {
		return nil, err
	}
	n := data.Len()
	if n < 0 {
		return nil, fmt.Errorf("dataloader: the data set's length is %d, must not be negative", n)
	}
	l := &DataLoader[B]{opts: opts, asking: make(chan struct{}, 1)}
	var positions interface{ Len() int } = opts.BatchSampler
	if opts.BatchSampler == nil {
		if opts.Sampler == nil && opts.Shuffle {
			opts.Sampler = Random(n, opts.Seed)
		} else if opts.Sampler == nil {
			opts.Sampler = Sequential(n)
		}
		positions = opts.Sampler
	}
	l.orders.order = orderOf(opts.Sampler, opts.BatchSampler)
	l.deal = deal{n: positions.Len(), shard: opts.Shard, tail: opts.Tail, dropLast: opts.DropLast}
	if l.deal.n < 0 || l.deal.n > math.MaxInt/2 {
		return nil, fmt.Errorf("dataloader: the length of %T is %d, must not be negative, and at most %d", positions, l.deal.n, math.MaxInt/2)
	}
	l.deal.size = min(opts.BatchSize, l.deal.n+1) // more is no more, and could overflow
	l.deal = l.deal.start(0)
	l.free = make([]B, 0, min(opts.Workers*opts.Prefetch, l.Len())+2)
	l.name = describe(positions)
	l.state = &loaderState{By: l.name, Seed: opts.Seed}
	l.worker = func(ctx context.Context, number int, e *epoch) func(*result[B]) {
		f := &fetcher[T, B]{data: data, n: n, collate: collate, opts: &l.opts, epoch: e}
		f.all, _ = data.(BatchGetter[T])
		f.ctx, f.scope = withScope(ctx, number, opts.Seed, spot{})
		return f.load
	}
	return l, nil
}

// Len returns the number of batches that an epoch gives this shard.
func (l *DataLoader[B]) Len() int { return l.deal.steps() }

// Epoch returns the batches of one epoch, from its start. The same epoch has the same order again, the
// next one another. See Stream.Epoch.
func (l *DataLoader[B]) Epoch(ctx context.Context, epoch int) iter.Seq2[B, error] {
	return l.Stream().Epoch(ctx, epoch)
}

// Run returns the batches from *at to the end of its epoch and keeps *at current: the training loop is
// the one in the package's comment. See Stream.Run.
func (l *DataLoader[B]) Run(ctx context.Context, at *Cursor) iter.Seq2[B, error] {
	return l.Stream().Run(ctx, at)
}

// Stream returns the loader as a stream, to go on with: to map its batches, or to mix it with another.
func (l *DataLoader[B]) Stream() Stream[B] { return streamOf(nil, l.run) }

// Batch loads batch k of an epoch, 0 <= k < Len(), in the calling goroutine: the one that a loop over the
// epoch gives at its k-th turn. It disturbs no loop that is under way, and Options.Trace does not see it.
func (l *DataLoader[B]) Batch(ctx context.Context, epoch, k int) (B, error) {
	var b result[B]
	e, err := l.open(Cursor{Epoch: epoch})
	if err != nil {
		return b.batch, err
	}
	if k < 0 || k >= e.steps {
		return b.batch, fmt.Errorf("dataloader: batch %d of epoch %d: there are %d batches", k, epoch, e.steps)
	}
	if ctx.Err() == nil {
		b.step = k
		l.worker(ctx, -1, e)(&b)
	}
	if ctx.Err() != nil || !l.judge(ctx, e, &b) {
		var none B
		return none, context.Cause(ctx)
	}
	if b.err == nil && b.samples == 0 {
		b.err = e.fault(k, -1, errors.New("all samples were dropped"))
	}
	return b.batch, b.err
}

// Recycle gives back the memory of a batch that this loader has made, for a later batch to be built in: b,
// and what it refers to, must not be used again. It is optional, and worth it for large batches. If more is
// given back than can be of use, the garbage collector gets it.
func (l *DataLoader[B]) Recycle(b B) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.free) < cap(l.free) {
		l.free = append(l.free, b)
	}
}

// run is one loop over the rest of an epoch.
func (l *DataLoader[B]) run(ctx context.Context, from Cursor, yield func(Item[B], error) bool) error {
	e, err := l.open(from)
	if err != nil {
		return err
	}
	loading := engine[result[B]]{
		workers: l.opts.Workers,
		window:  max(1, min(l.opts.Workers*l.opts.Prefetch, e.steps)),
		ordered: !l.opts.Unordered,
		next:    func(b *result[B]) bool { return l.next(e, b) },
		load:    func(ctx context.Context, w int) func(*result[B]) { return l.worker(ctx, w, e) },
	}
	if l.opts.Trace != nil {
		e.began = time.Now()
	}
	ended, first, clock, step := false, true, e.began, time.Duration(0)
	loading.run(ctx, func(b *result[B]) bool {
		received := e.now()
		if ended = ctx.Err() != nil || !l.judge(ctx, e, b); ended {
			return false
		}
		e.delivered(b.step)
		if l.opts.Trace != nil {
			l.opts.Trace(Timing{e.number, e.first + b.step, b.worker, b.samples, len(b.failed),
				b.sent, b.start, b.done, received, received.Sub(clock), step, first})
			first = false
		}
		more := true
		if b.err == nil && b.samples == 0 { // all dropped: there is nothing to hand over
			l.Recycle(b.batch)
		} else {
			more = yield(Item[B]{b.batch, e.cursor(l.state)}, b.err)
		}
		clock = e.now()
		step = clock.Sub(received)
		return more
	})
	if ended {
		return context.Cause(ctx)
	}
	return nil
}

// A result is a batch on its way: what to load, and then what has been loaded.
type result[B any] struct {
	step    int            // which batch, counted from the epoch's deal
	batch   B              // first the memory to build it in, then the batch; zero if it failed
	samples int            // how many it has
	failed  []*SampleError // what could not be fetched, for OnError to judge
	err     error

	worker            int
	sent, start, done time.Time // only with Trace
}

// next makes b the next batch to load, if there is one.
func (l *DataLoader[B]) next(e *epoch, b *result[B]) bool {
	if b.step = e.next(); b.step >= e.steps {
		return false
	}
	l.mu.Lock()
	if last := len(l.free) - 1; last >= 0 {
		var none B
		b.batch, l.free[last] = l.free[last], none
		l.free = l.free[:last]
	}
	l.mu.Unlock()
	b.sent = e.now()
	return true
}

// judge asks OnError about the samples of b that failed, one loop at a time. Others wait for user code here, so it is
// at a channel, not a mutex; it reports false if ctx has ended meanwhile. With workers, user code that ends its
// goroutine must not end the caller's.
func (l *DataLoader[B]) judge(ctx context.Context, e *epoch, b *result[B]) bool {
	if len(b.failed) > 0 {
		select {
		case l.asking <- struct{}{}:
		case <-ctx.Done():
			return false
		}
		defer func() { <-l.asking }()
		ask := func() {
			asked, done := 0, false
			defer func() {
				if !done {
					b.err = e.fault(b.step, b.failed[asked].Index, fmt.Errorf("OnError: %w", caught(recover())))
				}
			}()
			for i, failure := range b.failed {
				asked = i
				if err := l.opts.OnError(failure); err != nil {
					b.err = err
					break
				}
			}
			done = true
		}
		if l.opts.Workers == 0 {
			ask()
		} else {
			apart(ask)
		}
	}
	if b.err != nil {
		var none B
		b.batch, b.samples, b.failed = none, 0, nil
	}
	return true
}

// A fetcher loads batches in one goroutine. Its slices are used again for each.
type fetcher[T, B any] struct {
	data    Dataset[T]
	all     BatchGetter[T] // data, if it is one
	n       int            // the length of data
	collate Collate[T, B]
	opts    *Options
	epoch   *epoch
	ctx     context.Context
	scope   *scope // in ctx

	positions []int // of the batch in the epoch's order
	indices   []int // of its samples in data; of those fetched, after fetch
	samples   []T
	at        int // the sample that user code is being called for, or -1

	task     *trace.Task // of the batch, while an execution trace is being written; else nil
	region   *trace.Region
	untraced context.Context // ctx without the task
}

// load turns b, which says what to load, into the batch or its error.
func (f *fetcher[T, B]) load(b *result[B]) {
	b.worker, b.start = f.scope.worker, f.epoch.now()
	over := false
	f.at = -1
	if trace.IsEnabled() {
		f.beginTask(b)
	}
	defer func() {
		if !over {
			b.err = f.epoch.fault(b.step, f.at, caught(recover()))
		}
		if f.task != nil {
			f.endTask()
		}
		clear(f.samples)
		b.done = f.epoch.now()
	}()
	if b.err = f.choose(b.step); b.err == nil {
		b.err = f.fetch(b)
	}
	if b.samples = len(f.samples); b.err == nil && b.samples > 0 {
		f.enter("collate")
		if b.batch, b.err = f.collate(b.batch, f.samples); b.err != nil {
			b.err = f.epoch.fault(b.step, -1, fmt.Errorf("collating samples %s: %w", few(f.indices), b.err))
		}
	}
	over = true
}

// beginTask makes the batch a task of the execution trace that is being written, for user code too.
func (f *fetcher[T, B]) beginTask(b *result[B]) {
	f.untraced = f.ctx
	f.ctx, f.task = trace.NewTask(f.ctx, "batch")
	trace.Logf(f.ctx, "batch", "epoch %d, batch %d", f.epoch.number, f.epoch.first+b.step)
}

// enter begins a region of the task, if there is one, and ends the region before.
func (f *fetcher[T, B]) enter(region string) {
	if f.task != nil {
		if f.region != nil {
			f.region.End()
		}
		f.region = trace.StartRegion(f.ctx, region)
	}
}

// endTask ends the task and its region.
func (f *fetcher[T, B]) endTask() {
	if f.region != nil {
		f.region.End()
	}
	f.task.End()
	f.ctx, f.task, f.region = f.untraced, nil, nil
}

// choose asks the sampler for the indices of the batch at step k.
func (f *fetcher[T, B]) choose(k int) error {
	f.samples = f.samples[:0]
	f.indices = f.indices[:0]
	o := f.epoch.order
	if o.err != nil {
		return f.epoch.fault(k, -1, o.err)
	}
	f.positions = f.epoch.deal.positions(f.positions[:0], k)
	for _, pos := range f.positions {
		if pos >= f.epoch.deal.n {
			pos %= f.epoch.deal.n // PadTail
		}
		if o.batches != nil {
			f.indices = append(f.indices, o.batches(pos)...)
		} else {
			f.indices = append(f.indices, o.samples(pos))
		}
	}
	if len(f.indices) == 0 {
		return f.epoch.fault(k, -1, errors.New("the sampler gave no index"))
	}
	return nil
}

// spot is the place of the batch's j-th sample.
func (f *fetcher[T, B]) spot(j int) spot {
	if f.epoch.order.batches != nil {
		return spot{uint64(f.epoch.number), uint64(f.positions[0]), uint64(j)}
	}
	return spot{uint64(f.epoch.number), uint64(f.positions[j]), 0}
}

// fetch fetches the batch's samples. Without OnError the first that fails fails the batch.
func (f *fetcher[T, B]) fetch(b *result[B]) error {
	f.enter("fetch")
	if f.all != nil {
		return f.fetchAll(b)
	}
	good := f.indices[:0]
	for j, i := range f.indices {
		if err := f.ctx.Err(); err != nil {
			return err
		}
		f.scope.move(f.spot(j))
		sample, err := f.get(i)
		if err == nil {
			f.samples = append(f.samples, sample)
			good = append(good, i)
		} else if err := f.refuse(b, i, err); err != nil {
			return err
		}
	}
	f.indices, f.at = good, -1
	return nil
}

// get fetches one sample. It is try written out, which is called for every sample and would take 20 ns more.
func (f *fetcher[T, B]) get(i int) (sample T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = caught(r)
		}
	}()
	if f.at = i; i < 0 || i >= f.n {
		return sample, outside(i, f.n)
	}
	return f.data.Get(f.ctx, i)
}

// refuse puts sample i aside for OnError, or makes its error the batch's.
func (f *fetcher[T, B]) refuse(b *result[B], i int, err error) error {
	failure := f.epoch.fault(b.step, i, err)
	if f.opts.OnError == nil {
		return failure
	}
	b.failed = append(b.failed, failure)
	return nil
}

// fetchAll fetches the batch's samples in one call.
func (f *fetcher[T, B]) fetchAll(b *result[B]) error {
	f.scope.move(f.spot(0))
	good := f.indices[:0]
	for _, i := range f.indices {
		if i >= 0 && i < f.n {
			good = append(good, i)
		} else if err := f.refuse(b, i, outside(i, f.n)); err != nil {
			return err
		}
	}
	f.indices = good
	if len(good) == 0 {
		return nil
	}
	samples, err := f.all.GetBatch(f.ctx, good)
	if err == nil && len(samples) != len(good) {
		err = fmt.Errorf("GetBatch returned %d samples for %d indices", len(samples), len(good))
	}
	if err != nil {
		return f.epoch.fault(b.step, -1, err)
	}
	f.samples = append(f.samples, samples...)
	return nil
}

// few lists indices for an error.
func few(indices []int) string {
	if len(indices) > 16 {
		return fmt.Sprintf("%v and %d more", indices[:16], len(indices)-16)
	}
	return fmt.Sprint(indices)
}

// A loaderState is the State of a loader's cursor. By, which describes the order, and Seed tell loaders apart
// whose batches differ, the seed because of Rand.
type loaderState struct {
	By   string `json:"by"`
	Seed uint64 `json:"seed,omitempty"`
	// Done are the steps after Pos that were delivered already, out of order; Shard and Size, the batch
	// size, say what a step is. Only an unordered loop makes them.
	Done  []run  `json:"done,omitempty"`
	Shard *Shard `json:"shard,omitempty"`
	Size  int    `json:"size,omitempty"`
}

// A run is the steps from the first number up to, not including, the second.
type run [2]int

// An epoch is the rest of an epoch as one loop goes through it. Its steps, the shard's batches, count from
// where the loop began. All of them below mark have been delivered, and those in ahead.
type epoch struct {
	number int
	deal   deal
	order  order
	first  int // what batch of the epoch step 0 is
	steps  int
	sent   int // the next step to be sent, but for those in ahead
	mark   int
	ahead  []run     // sorted, apart from mark and from each other
	began  time.Time // of the loop; zero without Trace
}

// now is the time, if anybody wants to know. Only the first call asks for the date, which takes longer than the time since.
func (e *epoch) now() time.Time {
	if e.began.IsZero() {
		return e.began
	}
	return e.began.Add(time.Since(e.began))
}

// open begins a loop at a cursor, or says why it does not fit.
func (l *DataLoader[B]) open(from Cursor) (*epoch, error) {
	var s loaderState
	if err := from.open(l.name, &s.By, &s); err != nil {
		return nil, err
	}
	if !from.atStart() && s.Seed != l.opts.Seed {
		return nil, from.refused("it was made with Options.Seed %d, this loader has Options.Seed %d", s.Seed, l.opts.Seed)
	}
	if from.Pos > l.deal.n {
		return nil, from.refused("pos must be at most %d", l.deal.n)
	}
	if len(s.Done) > 0 && (s.Shard == nil || *s.Shard != l.deal.shard || s.Size != l.deal.size) {
		return nil, from.refused("it was made out of order by shard %v with batches of %d, this loader is shard %v with batches of %d",
			*cmp.Or(s.Shard, new(Shard)), s.Size, l.deal.shard, l.deal.size)
	}
	e := &epoch{number: from.Epoch, deal: l.deal.start(from.Pos), ahead: s.Done}
	e.first = from.Pos / l.deal.size / l.deal.shard.Count
	e.steps = e.deal.steps()
	end := 0
	for _, r := range s.Done {
		if r[0] <= end || r[1] <= r[0] || r[1] > e.steps {
			return nil, from.refused("its state is damaged: %v are no steps of %d", s.Done, e.steps)
		}
		end = r[1]
	}
	e.order, e.order.err = try(func() (order, error) { return l.orders.at(e.number), nil })
	return e, nil
}

// next returns the next step to be sent, e.steps or more if there is none.
func (e *epoch) next() int {
	e.sent = max(e.sent, e.mark)
	for _, r := range e.ahead { // a resumed loop may have been sent these before
		if r[0] <= e.sent && e.sent < r[1] {
			e.sent = r[1]
		}
	}
	e.sent++
	return e.sent - 1
}

// delivered notes that step k is over: as a run of its own, joined to its neighbours and to the mark.
func (e *epoch) delivered(k int) {
	if k == e.mark && len(e.ahead) == 0 { // as always when in order
		e.mark++
		return
	}
	i, _ := slices.BinarySearchFunc(e.ahead, k, func(r run, k int) int { return r[0] - k })
	e.ahead = slices.Insert(e.ahead, i, run{k, k + 1})
	if i+1 < len(e.ahead) && e.ahead[i+1][0] == k+1 {
		e.ahead[i][1] = e.ahead[i+1][1]
		e.ahead = slices.Delete(e.ahead, i+1, i+2)
	}
	if i > 0 && e.ahead[i-1][1] == k {
		e.ahead[i-1][1] = e.ahead[i][1]
		e.ahead = slices.Delete(e.ahead, i, i+1)
	}
	if e.ahead[0][0] == e.mark {
		e.mark = e.ahead[0][1]
		e.ahead = slices.Delete(e.ahead, 0, 1)
	}
}

// cursor is the place after what has been delivered. plain is its state if nothing was delivered ahead.
func (e *epoch) cursor(plain any) Cursor {
	c := Cursor{e.number, e.deal.after(e.mark), plain}
	if len(e.ahead) > 0 {
		s := *plain.(*loaderState)
		s.Done, s.Shard, s.Size = slices.Clone(e.ahead), &e.deal.shard, e.deal.size
		for i := range s.Done {
			s.Done[i][0] -= e.mark
			s.Done[i][1] -= e.mark
		}
		c.State = &s
	}
	return c
}

// fault is the error of the batch at step k, for the sample with the given index.
func (e *epoch) fault(k, index int, err error) *SampleError {
	return &SampleError{e.number, e.first + k, index, err}
}

// A SampleError says what went wrong where: in which epoch, in which batch of this shard, at which sample
// of the data set. Index is -1 if it is not a single sample's fault: an error of the Collate, of GetBatch
// or of the sampler. Err is the cause, which errors.Is and errors.As reach.
type SampleError struct {
	Epoch, Batch, Index int
	Err                 error
}

// Error names the epoch, the batch and, if it is one sample's fault, the sample.
func (e *SampleError) Error() string {
	if e.Index == -1 {
		return fmt.Sprintf("dataloader: epoch %d, batch %d: %v", e.Epoch, e.Batch, e.Err)
	}
	return fmt.Sprintf("dataloader: epoch %d, batch %d, sample %d: %v", e.Epoch, e.Batch, e.Index, e.Err)
}

// Unwrap returns the cause.
func (e *SampleError) Unwrap() error { return e.Err }

// A PanicError is a panic in the user's code, as an error: the value and the stack where it happened.
type PanicError struct {
	Value any
	Stack []byte
}

// Error has the value and the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Unwrap returns the value of the panic if it is an error, else nil.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// A Timing is what happened to one batch when.
type Timing struct {
	Epoch, Batch int // the batch of this shard, from 0
	Worker       int // who loaded it, or -1
	Samples      int // in the batch
	Dropped      int // left out by OnError

	Sent     time.Time // queued for the workers
	Start    time.Time // taken by one
	Done     time.Time // loaded
	Received time.Time // in the hands of the loop's goroutine

	Wait  time.Duration // for which the loop was blocked
	Step  time.Duration // for which the loop body had the batch before; 0 for a loop's first
	First bool          // of its loop
}

// Stats sums up the timings of a loader, and says in one line where the time goes: set Options.Trace to the Observe of a
// new(Stats), and print it when you like. The zero value is ready, and safe for concurrent use. Have one for each loader. Of
// several loops at once the times add up, and that a batch holds up others is not seen.
type Stats struct {
	mu                         sync.Mutex // guards all
	batches, loops             int
	samples, dropped, workers  int           // of the workers, as many as have been seen
	loading, waiting, training time.Duration // of a loop's last batch, the training is not known
	starting, stalled          time.Duration // of waiting: for the first batch of a loop, and while a later one was ready
	waits                      []wait        // those during which a batch still to come may have been ready
}

// A wait is a time in which the loop was blocked, from begin to end. Since ready, some later batch was ready.
type wait struct{ begin, ready, end time.Time }

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
	for i := len(s.waits) - 1; i >= 0 && t.Done.Before(s.waits[i].end); i-- {
		if w := &s.waits[i]; t.Done.Before(w.ready) {
			ready := w.begin
			if t.Done.After(ready) {
				ready = t.Done
			}
			s.stalled += w.ready.Sub(ready)
			w.ready = ready
		}
	}
	over := 0 // of the waits, those that ended before this batch, and any after it, was sent
	for over < len(s.waits) && !t.Sent.Before(s.waits[over].end) {
		over++
	}
	s.waits = append(slices.Delete(s.waits, 0, over), wait{t.Received.Add(-t.Wait), t.Received, t.Received})
}

// String says how many batches and samples there were, how much of the time in loops was spent on waiting for them, how
// much of that while a later batch was ready, and how busy the workers were; then which is the bottleneck, the loader or
// the training, and how many workers would do.
func (s *Stats) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.batches < 2 {
		return fmt.Sprintf("too few batches to say anything: %d", s.batches)
	}
	elapsed, unit := max(s.waiting+s.training, 1), time.Millisecond
	if elapsed < 100*unit {
		unit = time.Microsecond
	}
	share := func(d time.Duration) float64 { return 100 * float64(d) / float64(elapsed) }
	text := fmt.Sprintf("%d batches, %d samples (%.0f/s), %d dropped; waited %.0f %% of %v, %.0f %% with later batches ready",
		s.batches, s.samples, float64(s.samples)/elapsed.Seconds(), s.dropped, share(s.waiting), elapsed.Round(unit), share(s.stalled))
	busy := share(s.loading) / float64(max(s.workers, 1))
	if s.workers > 0 {
		text += fmt.Sprintf("; workers: %d, %.0f %% busy", s.workers, busy)
	}
	return text + ": " + s.verdict(elapsed, busy)
}

// verdict compares what it takes to load a batch with the time that the loop spends on one.
func (s *Stats) verdict(elapsed time.Duration, busy float64) string {
	load := float64(s.loading) / float64(s.batches)
	step := float64(s.training) / float64(max(1, s.batches-s.loops))
	enough := int(math.Ceil(load/max(step, load/1000, 1) - 0.05))
	switch {
	case s.waiting < elapsed/10:
		return fmt.Sprintf("the training is the bottleneck, workers needed: %d", min(enough, s.workers))
	case s.workers == 0 && enough <= 1:
		return "loading and training take turns, a worker would load meanwhile"
	case enough <= s.workers && s.starting > s.waiting/2:
		return fmt.Sprintf("the loader keeps up, but for the first batch of a loop; loops: %d", s.loops)
	case enough <= s.workers && s.stalled > s.waiting/2:
		return "slow batches hold up those behind them, raise Prefetch or set Unordered"
	case enough <= s.workers:
		return "the loader keeps up on average but not always, raise Prefetch"
	case s.workers > 0 && busy < 75:
		return "a few batches are so slow that the loop waits for them while workers are idle"
	case step < load/1000:
		return "the loader is the bottleneck, the loop takes no time of its own"
	case enough > runtime.GOMAXPROCS(0):
		return fmt.Sprintf("the loader is the bottleneck, workers needed: %d, if they wait rather than compute, for which there are %d CPUs", enough, runtime.GOMAXPROCS(0))
	}
	return fmt.Sprintf("the loader is the bottleneck, workers needed: %d", enough)
}

// Progress returns seq and shows on w how far it has got: the count, of total unless that is 0 or less, the rate, the time
// left, and the share of the time in which the loop waited for seq. total is what seq gives: of a resumed epoch, what is
// left of it. On a terminal that is a bar, drawn at most ten times a second when an item is done; elsewhere a line every
// ten seconds. A last line comes at the end, also after a break. Values and errors pass through. PyTorch: what tqdm
// does around a DataLoader.
func Progress[B any](w io.Writer, total int, seq iter.Seq2[B, error]) iter.Seq2[B, error] {
	return progress(w, total, isTerminal(w), seq)
}

// isTerminal reports whether what is written to w is seen at once, as far as the standard library can tell.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func progress[B any](w io.Writer, total int, terminal bool, seq iter.Seq2[B, error]) iter.Seq2[B, error] {
	return func(yield func(B, error) bool) {
		m, width := meter{total: total}, 0
		draw := func(end string) {
			line := m.line(terminal)
			if terminal { // over the line before, which may have been longer
				fmt.Fprintf(w, "\r%-*s%s", width, line, strings.TrimSuffix(end, "\n"))
				width = len(line)
			} else {
				fmt.Fprint(w, line, end)
			}
		}
		every := 10 * time.Second
		if terminal {
			every = time.Second / 10
		}
		start := time.Now()
		drawn, back, more := start, start, true // when the last line was written; when the loop came back
		for item, err := range seq {
			m.waited += time.Since(back)
			more = yield(item, err)
			back = time.Now()
			m.elapsed = back.Sub(start)
			if m.count++; !more {
				break
			}
			if back.Sub(drawn) >= every {
				drawn = back
				draw("\n")
			}
		}
		if more { // and found that there is no more
			m.waited += time.Since(back)
			m.elapsed = time.Since(start)
		}
		draw("")
		fmt.Fprintln(w)
	}
}

// A meter is how far a sequence is.
type meter struct {
	total, count    int
	elapsed, waited time.Duration
}

// line says so, on a terminal in less than 80 columns unless the numbers are very large.
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
