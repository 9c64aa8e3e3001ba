package dataloader

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Dataset is a map-style data set: Len samples, any of which Get fetches by its index, 0 <= i < Len().
//
// A loader with workers calls Get from several goroutines at once, so Get must be safe for concurrent use;
// reading shared memory is, a file handle with a position of its own is not. A Get that waits should
// return when ctx ends. Its error is the sample's error; io.EOF has no special meaning.
//
// PyTorch: torch.utils.data.Dataset, with Get for __getitem__. Unlabelled data is a Dataset whose samples
// are not a Pair.
type Dataset[T any] interface {
	Len() int
	Get(ctx context.Context, i int) (T, error)
}

// A BatchGetter is a Dataset that can fetch a whole batch in one call, as a data base or an array can.
// A loader then never calls Get. GetBatch returns one sample for each index, in the order of the indices,
// which it must not keep: the slice is used again for the next batch.
//
// Subset and Split pass GetBatch on; the other adapters fetch sample by sample. PyTorch: __getitems__.
type BatchGetter[T any] interface {
	GetBatch(ctx context.Context, indices []int) ([]T, error)
}

// outside says which indices a data set of n samples has.
func outside(i, n int) error {
	return fmt.Errorf("index %d is outside the data set, which has %d samples", i, n)
}

// panicIf panics if an argument can never be right.
func panicIf(bad bool, format string, args ...any) {
	if bad {
		panic(fmt.Sprintf("dataloader: "+format, args...))
	}
}

// Slice is a Dataset in memory. A nil Slice is an empty data set.
type Slice[T any] []T

// Len returns the number of samples.
func (s Slice[T]) Len() int { return len(s) }

// Get returns s[i].
func (s Slice[T]) Get(_ context.Context, i int) (T, error) {
	if i < 0 || i >= len(s) {
		var zero T
		return zero, outside(i, len(s))
	}
	return s[i], nil
}

// Func makes a Dataset of n samples out of a function, which must be safe for concurrent use.
// It panics if n is negative or get is nil.
func Func[T any](n int, get func(ctx context.Context, i int) (T, error)) Dataset[T] {
	panicIf(n < 0, "Func: n is %d, must not be negative", n)
	panicIf(get == nil, "Func: get is nil")
	return function[T]{n, get}
}

type function[T any] struct {
	n   int
	get func(ctx context.Context, i int) (T, error)
}

// Len returns the number of samples.
func (f function[T]) Len() int { return f.n }

// Get calls the function, for an index that there is.
func (f function[T]) Get(ctx context.Context, i int) (T, error) {
	if i < 0 || i >= f.n {
		var zero T
		return zero, outside(i, f.n)
	}
	return f.get(ctx, i)
}

// A Pair is two things that belong together: a sample and its label, features and target.
type Pair[A, B any] struct {
	First  A
	Second B
}

// Pairs joins two data sets of the same length, sample by sample: images and their labels.
// Another length, or a nil data set, is an error. PyTorch: StackDataset, TensorDataset.
func Pairs[A, B any](a Dataset[A], b Dataset[B]) (Dataset[Pair[A, B]], error) {
	if a == nil || b == nil {
		return nil, errors.New("dataloader: Pairs: a data set is nil")
	}
	if a.Len() != b.Len() {
		return nil, fmt.Errorf("dataloader: Pairs: the first data set has %d samples, the second %d; they must be equal", a.Len(), b.Len())
	}
	return Func(a.Len(), func(ctx context.Context, i int) (p Pair[A, B], err error) {
		if p.First, err = a.Get(ctx, i); err != nil {
			return p, err
		}
		p.Second, err = b.Get(ctx, i)
		return p, err
	}), nil
}

// Concat puts data sets one after the other; a part may be empty. It panics if one is nil.
// PyTorch: ConcatDataset.
func Concat[T any](parts ...Dataset[T]) Dataset[T] {
	parts = slices.Clone(parts)
	bounds := make([]int, 1, len(parts)+1) // part p has the indices bounds[p] to bounds[p+1]-1
	for p, part := range parts {
		panicIf(part == nil, "Concat: part %d is nil", p)
		bounds = append(bounds, bounds[p]+part.Len())
	}
	return Func(bounds[len(parts)], func(ctx context.Context, i int) (T, error) {
		p, _ := slices.BinarySearch(bounds[1:], i+1) // the first part that ends after i
		return parts[p].Get(ctx, i-bounds[p])
	})
}

// Subset is the data set of the samples with the given indices, in their order; an index may occur more
// than once. An index outside data, or a nil data set, is an error. The indices are copied.
//
// PyTorch: Subset; with Options.Shuffle, what SubsetRandomSampler does.
func Subset[T any](data Dataset[T], indices []int) (Dataset[T], error) {
	if data == nil {
		return nil, errors.New("dataloader: Subset: the data set is nil")
	}
	for p, i := range indices {
		if i < 0 || i >= data.Len() {
			return nil, fmt.Errorf("dataloader: Subset: indices[%d]: %w", p, outside(i, data.Len()))
		}
	}
	indices = slices.Clone(indices)
	return subset(data, len(indices), func(i int) int { return indices[i] }), nil
}

// Split deals data out, at random but for the seed, into data sets of the given lengths: training,
// validation and test. No sample is in two of them. The lengths must not be negative and must sum to
// data.Len(). The split is torch's own, random_split with a generator of this seed, element for element.
func Split[T any](data Dataset[T], seed uint64, lengths ...int) ([]Dataset[T], error) {
	if data == nil {
		return nil, errors.New("dataloader: Split: the data set is nil")
	}
	sum := 0
	for p, n := range lengths {
		if n < 0 || n > data.Len()-sum {
			return nil, fmt.Errorf("dataloader: Split: lengths[%d] is %d, must be 0 to %d, what is left of %d samples", p, n, data.Len()-sum, data.Len())
		}
		sum += n
	}
	if sum != data.Len() {
		return nil, fmt.Errorf("dataloader: Split: the lengths %v sum to %d, must sum to %d, the number of samples", lengths, sum, data.Len())
	}
	if sum > maxTorch { // of sampler.go, as TorchRandom below
		return nil, fmt.Errorf("dataloader: Split: %d samples are more than %d, up to which torch's order is known; use Subset", sum, maxTorch)
	}
	order := TorchRandom(sum, seed).Order(0) // a function from position to index
	parts := make([]Dataset[T], len(lengths))
	end := 0
	for p, n := range lengths {
		from := end
		parts[p] = subset(data, n, func(i int) int { return order(from + i) })
		end += n
	}
	return parts, nil
}

// subset is the n samples index(0), …, index(n-1) of data.
func subset[T any](data Dataset[T], n int, index func(i int) int) Dataset[T] {
	one := function[T]{n, func(ctx context.Context, i int) (T, error) { return data.Get(ctx, index(i)) }}
	if all, ok := data.(BatchGetter[T]); ok {
		return batchSubset[T]{one, all, index}
	}
	return one
}

// A batchSubset is a subset of a data set that is a BatchGetter, and so is one itself.
type batchSubset[T any] struct {
	function[T]
	all   BatchGetter[T]
	index func(i int) int
}

// GetBatch fetches the samples with the indices that these ones stand for.
func (s batchSubset[T]) GetBatch(ctx context.Context, indices []int) ([]T, error) {
	mapped := make([]int, len(indices))
	for j, i := range indices {
		if i < 0 || i >= s.n {
			return nil, outside(i, s.n)
		}
		mapped[j] = s.index(i)
	}
	return s.all.GetBatch(ctx, mapped)
}

// Transform applies f to every sample as it is fetched: decode, crop, augment. It runs in the worker that
// fetches the sample, so f must be safe for concurrent use; its random numbers come from Rand(ctx). An
// error of f should name what could not be transformed. It panics if an argument is nil. PyTorch: the
// transform of a Dataset.
func Transform[T, U any](data Dataset[T], f func(context.Context, T) (U, error)) Dataset[U] {
	panicIf(data == nil, "Transform: the data set is nil")
	panicIf(f == nil, "Transform: the function is nil")
	return Func(data.Len(), func(ctx context.Context, i int) (U, error) {
		sample, err := data.Get(ctx, i)
		if err != nil {
			var zero U
			return zero, err
		}
		return f(ctx, sample)
	})
}

// Cache keeps every sample in memory once it has been fetched. Each is fetched once, also when several
// goroutines ask for it at the same time; an error is not kept, the next Get tries again. Because one
// fetch serves all epochs, Rand(ctx) inside it depends on the sample's index alone: put random
// augmentation outside the Cache, decoding inside, and let it make a copy of what it changes, because a kept
// sample is handed out again. It panics if data is nil.
func Cache[T any](data Dataset[T]) Dataset[T] {
	panicIf(data == nil, "Cache: the data set is nil")
	return &cache[T]{data: data, kept: map[int]T{}, busy: map[int]chan struct{}{}}
}

type cache[T any] struct {
	data Dataset[T]
	mu   sync.Mutex // guards the maps; never held while data.Get runs
	kept map[int]T
	busy map[int]chan struct{} // being fetched; closed when that is over
}

// Len returns the number of samples.
func (c *cache[T]) Len() int { return c.data.Len() }

// Get returns what is kept of sample i, or fetches it unless another goroutine does.
func (c *cache[T]) Get(ctx context.Context, i int) (T, error) {
	for {
		c.mu.Lock()
		sample, kept := c.kept[i]
		over, busy := c.busy[i]
		if !kept && !busy {
			c.busy[i] = make(chan struct{})
		}
		c.mu.Unlock()
		if kept {
			return sample, nil
		}
		if !busy {
			return c.fetch(ctx, i)
		}
		select { // somebody else fetches it; if that fails, it is our turn
		case <-over:
		case <-ctx.Done():
			return sample, context.Cause(ctx)
		}
	}
}

// fetch gets sample i, of which this goroutine alone is in charge. What it must undo is deferred, so that
// a panic does not leave others waiting.
func (c *cache[T]) fetch(ctx context.Context, i int) (sample T, err error) {
	good := false
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if good {
			c.kept[i] = sample
		}
		close(c.busy[i])
		delete(c.busy, i)
	}()
	sample, err = c.data.Get(withSpot(ctx, spot{pos: uint64(i)}), i) // Rand's place; worker.go has both
	good = err == nil
	return sample, err
}

// Retry calls data.Get up to attempts times until it succeeds, and waits between: backoff, then twice as
// long each time, less up to a half at random so that many machines do not come back at once. It gives up
// when ctx ends. Each attempt sees the same random numbers from Rand(ctx), so a failure in between changes
// nothing. It panics if data is nil, attempts is less than 1 or backoff is negative.
func Retry[T any](data Dataset[T], attempts int, backoff time.Duration) Dataset[T] {
	panicIf(data == nil, "Retry: the data set is nil")
	panicIf(attempts < 1, "Retry: attempts is %d, must be at least 1", attempts)
	panicIf(backoff < 0, "Retry: backoff is %v, must not be negative", backoff)
	return Func(data.Len(), func(ctx context.Context, i int) (T, error) {
		rewind := rewinder(ctx) // of Rand; see worker.go
		wait := backoff
		for attempt := 1; ; attempt++ {
			sample, err := data.Get(ctx, i)
			if err == nil || ctx.Err() != nil {
				return sample, err
			}
			if attempt == attempts {
				return sample, fmt.Errorf("after %d attempts: %w", attempts, err)
			}
			if err := pause(ctx, wait-rand.N(wait/2+1)); err != nil {
				return sample, err
			}
			if wait < math.MaxInt64/2 {
				wait *= 2
			}
			rewind()
		}
	})
}

// pause waits, at most until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A File is a file's name, a slash-separated path inside its file system, and what is in it.
type File struct {
	Name string
	Data []byte
}

// Files is the data set of the files of fsys whose names match one of the patterns, or of all files if
// there is no pattern. The names are listed once, sorted; a file is read when Get asks for it, so the data
// may be larger than memory. fsys is a directory (os.DirFS), an embedded tree, a zip (zip.Reader).
//
// A pattern is matched as by fs.Glob, against the whole name, and "**" stands for any number of folders:
// "*.png" is at the top only, "train/*/*.png" two folders down, "**/*.png" anywhere. A pattern that matches
// no file is an error, and so is a folder that cannot be read. Links to files are followed; links to folders
// only where the pattern spells their names out.
func Files(fsys fs.FS, patterns ...string) (Dataset[File], error) {
	if fsys == nil {
		return nil, errors.New("dataloader: Files: the file system is nil")
	}
	var names []string
	all := len(patterns) == 0
	if all {
		patterns = []string{"**"}
	}
	for _, pattern := range patterns {
		found, err := glob(fsys, pattern)
		if err == nil && len(found) == 0 && !all {
			err = fmt.Errorf("pattern %q matches no file", pattern)
		}
		if err != nil {
			return nil, fmt.Errorf("dataloader: Files: %w", err)
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	return readFiles(fsys, slices.Compact(names)), nil
}

// readFiles is the data set of the named files.
func readFiles(fsys fs.FS, names []string) Dataset[File] {
	return Func(len(names), func(_ context.Context, i int) (File, error) {
		data, err := fs.ReadFile(fsys, names[i])
		return File{names[i], data}, err
	})
}

// glob lists the files that match pattern. It walks the tree below the part of the pattern that has no
// wildcard.
func glob(fsys fs.FS, pattern string) ([]string, error) {
	parts := strings.Split(pattern, "/")
	fixed := 0
	for i, part := range parts {
		if _, err := path.Match(part, ""); err != nil {
			return nil, fmt.Errorf("pattern %q: %w", pattern, err)
		}
		if fixed == i && i < len(parts)-1 && !strings.ContainsAny(part, `*?[\`) {
			fixed++
		}
	}
	root := path.Join(parts[:fixed]...)
	if root == "" {
		root = "."
	}
	if !fs.ValidPath(root) {
		return nil, fmt.Errorf("pattern %q: %w", pattern, fs.ErrInvalid)
	}
	var names []string
	err := fs.WalkDir(fsys, root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && name == root:
			return nil // no file matches
		case err != nil:
			return err
		}
		elements := strings.Split(name, "/")
		if d.IsDir() {
			if name != root && !matchBelow(parts, elements) {
				return fs.SkipDir
			}
			return nil
		}
		if !matchPath(parts, elements) {
			return nil
		}
		mode := d.Type()
		if mode&fs.ModeSymlink != 0 {
			info, err := fs.Stat(fsys, name)
			if err != nil {
				return err
			}
			mode = info.Mode()
		}
		if mode.IsRegular() {
			names = append(names, name)
		}
		return nil
	})
	return names, err
}

// matchBelow reports whether files in the folder of this name may match the pattern.
func matchBelow(pattern, name []string) bool {
	for i, element := range name {
		if pattern[i] == "**" {
			return true
		}
		if ok, _ := path.Match(pattern[i], element); !ok || i == len(pattern)-1 {
			return false
		}
	}
	return true
}

// matchPath reports whether the folders and file of name match those of pattern, which is well formed.
func matchPath(pattern, name []string) bool {
	for len(pattern) > 0 && pattern[0] != "**" {
		if len(name) == 0 {
			return false
		}
		if ok, _ := path.Match(pattern[0], name[0]); !ok {
			return false
		}
		pattern, name = pattern[1:], name[1:]
	}
	if len(pattern) <= 1 { // all matched, or a last "**", which takes everything
		return len(pattern) == 1 || len(name) == 0
	}
	for skip := range len(name) {
		if matchPath(pattern[1:], name[skip:]) {
			return true
		}
	}
	return false
}

// Folder is the data set of a tree that keeps each class in a top-level folder of its own, at any depth
// in it: "cat/1.png", "dog/old/2.png". A sample is a file and the number of its class, which indexes the
// sorted names in classes. Files beside the folders, and names that begin with a dot, are left out. No
// folder, or one without a file, is an error. PyTorch: torchvision's ImageFolder.
func Folder(fsys fs.FS) (data Dataset[Pair[File, int]], classes []string, err error) {
	if fsys == nil {
		return nil, nil, errors.New("dataloader: Folder: the file system is nil")
	}
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, nil, fmt.Errorf("dataloader: Folder: %w", err)
	}
	var names []string
	var labels Slice[int]
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		info, err := fs.Stat(fsys, entry.Name()) // it may be a link to a folder
		if err != nil {
			return nil, nil, fmt.Errorf("dataloader: Folder: %w", err)
		}
		if !info.IsDir() {
			continue
		}
		sub, err := fs.Sub(fsys, entry.Name())
		if err != nil {
			return nil, nil, fmt.Errorf("dataloader: Folder: %w", err)
		}
		found, err := glob(sub, "**")
		if err != nil {
			return nil, nil, fmt.Errorf("dataloader: Folder: class %q: %w", entry.Name(), err)
		}
		found = slices.DeleteFunc(found, func(name string) bool { return strings.HasPrefix(name, ".") || strings.Contains(name, "/.") })
		if len(found) == 0 {
			return nil, nil, fmt.Errorf("dataloader: Folder: class %q has no file", entry.Name())
		}
		for _, name := range found {
			names = append(names, path.Join(entry.Name(), name))
			labels = append(labels, len(classes))
		}
		classes = append(classes, entry.Name())
	}
	if len(classes) == 0 {
		return nil, nil, errors.New("dataloader: Folder: there is no folder at the top; each class needs one")
	}
	data, err = Pairs(readFiles(fsys, names), labels)
	return data, classes, err
}

// A Cursor is a place in a stream, between two items: the whole of a checkpoint. Save it as JSON and pass
// it back to go on there. The zero Cursor is the start of epoch 0; Cursor{Epoch: e} is the start of epoch
// e, of any stream. It is a value that never changes once it has been handed out.
type Cursor struct {
	Epoch int `json:"epoch"`
	// Pos says how far into the epoch the stream that made the cursor stands, and grows as it goes on. For
	// a DataLoader it counts the positions of the order that all shards together have consumed.
	Pos int `json:"pos"`
	// State is whatever else that stream needs, nil at the start of an epoch: at least a description of
	// the stream, so that another one can refuse the cursor. After a trip through JSON it is raw until Load.
	State any `json:"state,omitempty"`
}

// UnmarshalJSON decodes a cursor but for its State, whose type only the stream that made it knows.
func (c *Cursor) UnmarshalJSON(data []byte) error {
	var raw struct {
		Epoch, Pos int
		State      json.RawMessage
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	*c = Cursor{Epoch: raw.Epoch, Pos: raw.Pos}
	if len(raw.State) > 0 && string(raw.State) != "null" {
		c.State = raw.State
	}
	return nil
}

// Load decodes State into *state, whether it comes fresh from a stream or back from JSON, and shares no
// memory with it. Both ways lead through JSON, so both give the same; integers are exact in any integer
// type. A nil State leaves *state as it is.
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

// isZero reports whether c is the zero cursor, which no item has: it marks an error that ends a sequence.
func (c Cursor) isZero() bool { return c.Epoch == 0 && c.atStart() }

// atStart reports whether c is the start of an epoch, which fits any stream.
func (c Cursor) atStart() bool { return c.Pos == 0 && c.State == nil }

// open loads the state of a cursor that fits a stream of the given name, if it has one. state is empty, and by points
// into it, at the name of the stream that made it.
func (c Cursor) open(name string, by *string, state any) error {
	if c.Epoch < 0 || c.Pos < 0 {
		return c.refused("epoch and pos must not be negative")
	}
	if c.atStart() {
		return nil
	}
	if err := c.Load(state); err != nil {
		return err
	}
	if *by != name {
		return c.refused("it was made by %s, this is %s", cmp.Or(*by, "another stream"), name)
	}
	return nil
}

// refused says why a cursor does not fit.
func (c Cursor) refused(format string, args ...any) error {
	return fmt.Errorf("dataloader: cursor {epoch %d, pos %d}: "+format, append([]any{c.Epoch, c.Pos}, args...)...)
}

// An Item is a value of a stream and the cursor just after it.
type Item[T any] struct {
	Value T
	Next  Cursor
}

// A Stream is a pure function from a cursor to the items that follow it, up to the end of the cursor's
// epoch. It is a definition, not an iterator: range over it twice, or twice at once, and it is read twice.
// Nothing is opened, and no goroutine started, before the range; all is closed and joined after it.
//
// A failed item comes as the zero value with its error, at its own position and with the cursor that
// follows it, and the next item comes after it. An error with the zero cursor is the last pair: the context
// has ended (the error is then context.Cause), or the cursor does not fit.
//
// A stream of your own is a function of this type. Let it begin where the cursor says, at Pos and with what State.Load
// gives; refuse a cursor in mid-epoch that is not its own; give each item a cursor of which Pos grows, and which never
// changes. The helper checkStream in dataloader_test.go puts a stream through all of that.
//
// PyTorch: IterableDataset, and the nodes of torchdata.nodes.
type Stream[T any] func(ctx context.Context, from Cursor) iter.Seq2[Item[T], error]

// Epoch returns the values of one epoch, from its start. The same epoch is the same again.
func (s Stream[T]) Epoch(ctx context.Context, epoch int) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		at := Cursor{Epoch: epoch}
		s.Run(ctx, &at)(yield)
	}
}

// Run returns the values from *at to the end of its epoch and keeps *at current: while the loop body has an
// item, *at is the cursor after it, so a checkpoint taken in the body resumes with the next one. After the
// last item *at is the start of the next epoch; after a break it stays where it is.
//
// When an item has failed, *at is still before it, so that a checkpoint taken then tries it again; it moves
// on with the next success. *at must not be changed or used by another Run while the loop runs.
func (s Stream[T]) Run(ctx context.Context, at *Cursor) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		epoch := at.Epoch
		for item, err := range s.guarded(ctx, *at) {
			if err == nil {
				*at = item.Next
			}
			if !yield(item.Value, err) || fatal(item, err) {
				return
			}
		}
		*at = Cursor{Epoch: epoch + 1}
	}
}

// fatal reports whether a pair of a stream is the last, an error that cannot be continued.
func fatal[T any](item Item[T], err error) bool { return err != nil && item.Next.isZero() }

// guarded is s, but for a panic in it, which becomes the last pair; caught, in worker.go, makes an error of it. A panic in
// the loop body, for which s is in the middle of a yield, passes.
func (s Stream[T]) guarded(ctx context.Context, from Cursor) iter.Seq2[Item[T], error] {
	return func(yield func(Item[T], error) bool) {
		outside := false
		defer func() {
			if outside {
				return
			}
			if r := recover(); r != nil {
				yield(Item[T]{}, fmt.Errorf("dataloader: epoch %d: the stream: %w", from.Epoch, caught(r)))
			}
		}()
		s(ctx, from)(func(item Item[T], err error) bool {
			outside = true
			more := yield(item, err)
			outside = !more // what it does when the loop has been left is no item's error
			return more
		})
	}
}

// The streams that only compose follow. They are of two kinds. What gives items one for one or drops some, as
// Filter does, hands its source's cursors on. What counts, joins or reorders makes cursors of its own, with
// its sources' cursors in them; it is made with staged. An argument that makes no sense is the stream's only pair.

// streamOf makes a stream of run, which hands out pairs with yield until that reports false or the epoch has
// ended, or returns an error that cannot be continued. Of bad arguments that is all there is.
func streamOf[T any](bad error, run func(ctx context.Context, from Cursor, yield func(Item[T], error) bool) error) Stream[T] {
	return func(ctx context.Context, from Cursor) iter.Seq2[Item[T], error] {
		return func(yield func(Item[T], error) bool) {
			err := bad
			if err == nil {
				err = run(ctx, from, yield)
			}
			if err != nil {
				yield(Item[T]{}, err)
			}
		}
	}
}

// badIf is an error about an argument of a stream, if it is bad.
func badIf(bad bool, format string, args ...any) error {
	if bad {
		return fmt.Errorf("dataloader: "+format, args...)
	}
	return nil
}

// badNil is an error about the sources of a stream, if one is nil.
func badNil[T any](name string, srcs ...Stream[T]) error {
	for i, s := range srcs {
		if s == nil {
			return fmt.Errorf("dataloader: %s: stream %d is nil", name, i)
		}
	}
	return nil
}

// A stage is the State of a stream that makes cursors of its own.
type stage struct {
	By      string   `json:"by"`          // describes the stream: with another name the cursor is refused
	N       int      `json:"n,omitempty"` // counts of the stream's own
	M       int      `json:"m,omitempty"`
	Source  Cursor   `json:"source,omitzero"`
	Sources []Cursor `json:"sources,omitempty"` // if it has several
	Ended   []bool   `json:"ended,omitempty"`   // which of these have been read to their end
	Offset  int64    `json:"offset,omitempty"`  // in a shard
	Packed  bool     `json:"packed,omitempty"`  // whether that counts unpacked bytes
}

// An emitter hands an item over: its value or error, its place in the epoch, and the stage that follows it,
// which must not be changed any more. It reports whether to go on.
type emitter[T any] func(value T, err error, pos int, next *stage) bool

// staged is streamOf for a stream that makes cursors of its own: run goes on from a stage, which at the start of an
// epoch is fresh, with its sources at the start of theirs, of the same number.
func staged[T any](name string, sources int, bad error, run func(ctx context.Context, from Cursor, at stage, emit emitter[T]) error) Stream[T] {
	return streamOf(bad, func(ctx context.Context, from Cursor, yield func(Item[T], error) bool) error {
		var at stage
		if err := from.open(name, &at.By, &at); err != nil {
			return err
		}
		if from.atStart() {
			at = stage{Source: from, Sources: slices.Repeat([]Cursor{from}, sources), Ended: make([]bool, sources)}
		}
		if at.N < 0 || at.M < 0 || at.Offset < 0 || len(at.Sources) != sources || len(at.Ended) != sources {
			return from.refused("its state is damaged: %+v", at)
		}
		ended := false
		err := run(ctx, from, at, func(value T, err error, pos int, next *stage) bool {
			ended = ctx.Err() != nil
			return !ended && yield(Item[T]{value, Cursor{from.Epoch, pos, next}}, err)
		})
		if ended {
			err = context.Cause(ctx)
		}
		return err
	})
}

// Filter keeps the items for which keep is true. A panic in keep is the item's error. PyTorch: Filter.
func (s Stream[T]) Filter(keep func(T) bool) Stream[T] {
	// try, in worker.go, makes errors of panics.
	return streamOf(cmp.Or(badNil("Filter", s), badIf(keep == nil, "Filter: keep is nil")), func(ctx context.Context, from Cursor, yield func(Item[T], error) bool) error {
		for item, err := range s(ctx, from) {
			kept := true
			if err == nil {
				if kept, err = try(func() (bool, error) { return keep(item.Value), nil }); err != nil {
					item.Value, err = *new(T), failed("Filter", item.Next, err)
				}
			}
			if (kept || err != nil) && !yield(item, err) {
				return nil
			}
		}
		return nil
	})
}

// failed is the error of a user's function in a stream, for the item before next.
func failed(stage string, next Cursor, err error) error {
	return fmt.Errorf("dataloader: %s: epoch %d, the item before pos %d: %w", stage, next.Epoch, next.Pos, err)
}

// Take ends each epoch after n items, and asks for none after them. n must not be negative. torchdata: Header.
func (s Stream[T]) Take(n int) Stream[T] {
	name := fmt.Sprintf("Take(%d)", n)
	bad := cmp.Or(badNil("Take", s), badIf(n < 0, "Take: n is %d, must not be negative", n))
	return staged(name, 0, bad, func(ctx context.Context, from Cursor, at stage, emit emitter[T]) error {
		pos := from.Pos
		if pos >= n {
			return nil
		}
		for item, err := range s(ctx, at.Source) {
			if fatal(item, err) {
				return err
			}
			pos++
			if !emit(item.Value, err, pos, &stage{By: name, Source: item.Next}) || pos == n {
				return nil
			}
		}
		return nil
	})
}

// Repeat makes one epoch of several of s: epoch e covers the epochs e×times to e×times + times-1 of s. With times
// <= 0 it never ends, from epoch e of s on; an epoch without items is then an error. torchdata: Cycler.
func (s Stream[T]) Repeat(times int) Stream[T] {
	name := fmt.Sprintf("Repeat(%d)", max(times, 0))
	return staged(name, 0, badNil("Repeat", s), func(ctx context.Context, from Cursor, at stage, emit emitter[T]) error {
		if from.atStart() {
			at.Source.Epoch *= max(times, 1)
		}
		pos := from.Pos
		for round := at.N; times <= 0 || round < times; round++ {
			empty := at.Source.atStart()
			for item, err := range s(ctx, at.Source) {
				if fatal(item, err) {
					return err
				}
				empty = false
				pos++
				if !emit(item.Value, err, pos, &stage{By: name, N: round, Source: item.Next}) {
					return nil
				}
			}
			if empty && times <= 0 {
				return fmt.Errorf("dataloader: Repeat: the stream gave nothing in epoch %d", at.Source.Epoch)
			}
			at.Source = Cursor{Epoch: at.Source.Epoch + 1}
		}
		return nil
	})
}

// Shard (of sampler.go) takes every Count-th item, from the Index-th on: this rank's part of a source that cannot shard
// itself.
// All ranks must read the same items in the same order, so what drops or reorders them at random (Filter, Shuffle,
// Mix) belongs before Shard; after it go one-for-one stages and Batch. Then any rank's cursor, taken after the same
// number of steps, resumes every rank, of any number of ranks. An end that cannot be dealt out evenly is left uneven.
func (s Stream[T]) Shard(shard Shard) Stream[T] {
	shard, bad := shard.check()
	if bad != nil {
		bad = fmt.Errorf("dataloader: Stream.Shard: %w", bad)
	}
	return staged("Shard", 0, cmp.Or(badNil("Stream.Shard", s), bad), func(ctx context.Context, from Cursor, at stage, emit emitter[T]) error {
		// Pos is the number of items of s up to this rank's; N says how many more make the step complete.
		pos, mine := from.Pos, from.Pos+at.N+shard.Index+1
		for item, err := range s(ctx, at.Source) {
			if fatal(item, err) {
				return err
			}
			if pos++; pos < mine {
				continue
			}
			if !emit(item.Value, err, pos, &stage{By: "Shard", N: shard.Count - 1 - shard.Index, Source: item.Next}) {
				return nil
			}
			mine += shard.Count
		}
		return nil
	})
}

// FromSeq makes a stream of a sequence: seq(ctx, epoch) returns the items of an epoch, the same each time, and
// stops early only when ctx has ended. Its errors are items that failed. A resume reads past what came before.
// Nothing is called before the range. torchdata: IterableWrapper.
func FromSeq[T any](seq func(ctx context.Context, epoch int) iter.Seq2[T, error]) Stream[T] {
	name := "FromSeq" // what the sequence is nobody knows
	at := &stage{By: name}
	return staged(name, 0, badIf(seq == nil, "FromSeq: seq is nil"), func(ctx context.Context, from Cursor, _ stage, emit emitter[T]) error {
		pos := 0
		for value, err := range seq(ctx, from.Epoch) {
			if err != nil {
				value = *new(T)
			}
			if pos++; pos > from.Pos && !emit(value, err, pos, at) {
				return nil
			}
		}
		if ctx.Err() != nil { // which may be why it has stopped
			return context.Cause(ctx)
		}
		if pos < from.Pos {
			return from.refused("the sequence has only %d items", pos)
		}
		return nil
	})
}

// Chain puts streams one after the other, each with the epoch of the same number. PyTorch: ChainDataset.
func Chain[T any](srcs ...Stream[T]) Stream[T] {
	srcs = slices.Clone(srcs)
	name := fmt.Sprintf("Chain(%d)", len(srcs))
	return staged(name, 0, badNil("Chain", srcs...), func(ctx context.Context, from Cursor, at stage, emit emitter[T]) error {
		pos := from.Pos
		for n := at.N; n < len(srcs); n++ {
			for item, err := range srcs[n](ctx, at.Source) {
				if fatal(item, err) {
					return err
				}
				pos++
				if !emit(item.Value, err, pos, &stage{By: name, N: n, Source: item.Next}) {
					return nil
				}
			}
			at.Source = Cursor{Epoch: from.Epoch}
		}
		return nil
	})
}

// Zip joins two streams item by item and ends with the shorter. If one of the two items failed, so has the pair.
func Zip[A, B any](a Stream[A], b Stream[B]) Stream[Pair[A, B]] {
	return staged("Zip", 2, cmp.Or(badNil("Zip", a), badNil("Zip, second", b)), func(ctx context.Context, from Cursor, at stage, emit emitter[Pair[A, B]]) error {
		pos := from.Pos
		next, stop := iter.Pull2(b(ctx, at.Sources[1]))
		defer stop()
		for x, err := range a(ctx, at.Sources[0]) {
			if fatal(x, err) {
				return err
			}
			y, errB, ok := next()
			if !ok {
				return nil
			}
			if fatal(y, errB) {
				return errB
			}
			var pair Pair[A, B]
			if err = errors.Join(err, errB); err == nil {
				pair = Pair[A, B]{x.Value, y.Value}
			}
			pos++
			if !emit(pair, err, pos, &stage{By: "Zip", Sources: []Cursor{x.Next, y.Next}, Ended: at.Ended}) {
				return nil
			}
		}
		return nil
	})
}
