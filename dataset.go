package dataloader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"math/rand/v2"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// What is sample i? The first half of this file answers for data with indices:
//
//	Dataset                         the question: a length, and Get
//	Slice, Func, Rows               from memory, from a function, from a tensor
//	Pairs, Concat, Subset, Split,
//	Transform                       data sets from other data sets
//	Cache                           how often a sample is fetched
//	Rand, WithSeed, Worker          what a Get is told
//
// The second half begins with Files and Folder, data sets from a file system.
// Then it answers for streams, where the next item takes the place of sample i.

// A Dataset is a map-style data set: Len samples, any of which Get fetches by
// its index, 0 <= i < Len().
//
// A loader with workers calls Get from several goroutines at once, so Get must
// be safe for concurrent use. ReadAt on a shared file is safe; Read is not,
// because the goroutines would share the file's offset. A Get that waits should
// return when ctx ends. An error of Get fails the batch, or OnError is asked;
// io.EOF has no special meaning.
//
// A sample must stay valid until its batch is made. A Get that returns one
// buffer again and again makes batches in which all samples are the last one.
// To test a data set of your own, call checkDataset, a function in
// dataloader_test.go, in a test file in this folder.
//
// PyTorch: torch.utils.data.Dataset, with Get for __getitem__.
type Dataset[T any] interface {
	Len() int
	Get(ctx context.Context, i int) (T, error)
}

// Slice is a Dataset in memory. A nil Slice is an empty data set.
type Slice[T any] []T

// Len returns the number of samples.
func (s Slice[T]) Len() int { return len(s) }

// Get returns s[i].
func (s Slice[T]) Get(_ context.Context, i int) (sample T, err error) {
	if i < 0 || i >= len(s) {
		return sample, refuseIndex(i, len(s))
	}
	return s[i], nil
}

// refuseIndex returns the error of an index that a data set of n samples does
// not have.
func refuseIndex(i, n int) error {
	return fmt.Errorf("index %d is outside the data set, which has %d samples", i, n)
}

// Func makes a Dataset of n samples from a function, which must be safe for
// concurrent use. The function is called only with indices from 0 to n-1. Func
// panics if n is negative or get is nil.
func Func[T any](n int, get func(ctx context.Context, i int) (T, error)) Dataset[T] {
	panicIf(n < 0, "Func: n is %d, must not be negative", n)
	panicIf(get == nil, "Func: get is nil")
	return funcDataset[T]{n, get}
}

// A funcDataset is the Dataset that Func makes. The adapters below are such
// data sets, so that an index is checked in one place.
type funcDataset[T any] struct {
	n   int
	get func(ctx context.Context, i int) (T, error)
}

// Len returns the number of samples.
func (f funcDataset[T]) Len() int { return f.n }

// Get calls the function, if the data set has the index.
func (f funcDataset[T]) Get(ctx context.Context, i int) (sample T, err error) {
	if i < 0 || i >= f.n {
		return sample, refuseIndex(i, f.n)
	}
	return f.get(ctx, i)
}

// Rows is the Dataset of a tensor's rows. Sample i is row i, as a tensor of the
// shape t.Shape[1:] that shares the memory of t. It is an error if t has no
// dimension, or Data does not fit Shape. PyTorch: TensorDataset.
func Rows[E any](t Tensor[E]) (Dataset[Tensor[E]], error) {
	if len(t.Shape) == 0 {
		return nil, errors.New(
			"dataloader: Rows: the tensor has no dimension, must have at least 1")
	}
	n, size := t.Shape[0], elements(t.Shape[1:])
	if elements(t.Shape) != len(t.Data) {
		return nil, fmt.Errorf("dataloader: Rows: the tensor has %d elements, "+
			"which is not the product of its shape %v", len(t.Data), t.Shape)
	}
	shape := slices.Clone(t.Shape[1:])
	return Func(n, func(_ context.Context, i int) (Tensor[E], error) {
		return Tensor[E]{t.Data[i*size : (i+1)*size : (i+1)*size], shape}, nil
	}), nil
}

// A Pair is two things that belong together, such as a sample and its label.
type Pair[A, B any] struct {
	First  A
	Second B
}

// Pairs joins two data sets of the same length, sample by sample: images and
// their labels. Data sets of different lengths, and a nil data set, are errors.
// PyTorch: StackDataset, TensorDataset.
func Pairs[A, B any](a Dataset[A], b Dataset[B]) (Dataset[Pair[A, B]], error) {
	if a == nil || b == nil {
		return nil, errors.New("dataloader: Pairs: a data set is nil")
	}
	if a.Len() != b.Len() {
		return nil, fmt.Errorf("dataloader: Pairs: the first data set has %d samples, "+
			"the second %d; they must be equal", a.Len(), b.Len())
	}
	return Func(a.Len(), func(ctx context.Context, i int) (p Pair[A, B], err error) {
		if p.First, err = a.Get(ctx, i); err != nil {
			return p, err
		}
		p.Second, err = b.Get(ctx, i)
		return p, err
	}), nil
}

// Concat puts data sets one after the other. A part may be empty. Concat calls
// Len of each part once. It panics if a part is nil. PyTorch: ConcatDataset.
func Concat[T any](parts ...Dataset[T]) Dataset[T] {
	parts = slices.Clone(parts)
	bounds := make([]int, 1, len(parts)+1) // part p has the indices bounds[p] to bounds[p+1]-1
	for p, part := range parts {
		panicIf(part == nil, "Concat: part %d is nil", p)
		bounds = append(bounds, bounds[p]+part.Len())
		panicIf(bounds[p+1] < bounds[p],
			"Concat: the length of part %d is negative, or the sum overflows", p)
	}
	return Func(bounds[len(parts)], func(ctx context.Context, i int) (T, error) {
		p, _ := slices.BinarySearch(bounds[1:], i+1) // the first part that ends after i
		return parts[p].Get(ctx, i-bounds[p])
	})
}

// Subset is the data set of the samples with the given indices, in their order.
// An index may occur more than once. An index outside data, or a nil data set,
// is an error. The indices are copied.
//
// PyTorch: Subset; with Options.Shuffle, what SubsetRandomSampler does.
func Subset[T any](data Dataset[T], indices []int) (Dataset[T], error) {
	if data == nil {
		return nil, errors.New("dataloader: Subset: the data set is nil")
	}
	for p, i := range indices {
		if i < 0 || i >= data.Len() {
			err := refuseIndex(i, data.Len())
			return nil, fmt.Errorf("dataloader: Subset: indices[%d]: %w", p, err)
		}
	}
	indices = slices.Clone(indices)
	return Func(len(indices), func(ctx context.Context, i int) (T, error) {
		return data.Get(ctx, indices[i])
	}), nil
}

// Split divides data at random into data sets of the given lengths, such as
// training, validation and test sets. Each sample is in exactly one of them. No
// length may be negative, and their sum must be data.Len(). The same seed gives
// the same split: that of torch's random_split with a generator of this seed,
// element for element.
//
// With another number of samples Split makes another split: when the data grow,
// most samples of the old test set are in the new training set. Split also
// parts samples that belong together, such as images of one patient.
// ExampleSubset_byKey does neither. Split before you repeat or weight samples.
func Split[T any](data Dataset[T], seed uint64, lengths ...int) ([]Dataset[T], error) {
	if data == nil {
		return nil, errors.New("dataloader: Split: the data set is nil")
	}
	if data.Len() > maxTorch { // see TorchRandom in sampler.go
		return nil, fmt.Errorf("dataloader: Split: the data set has %d samples, "+
			"may have at most %d; use Subset", data.Len(), maxTorch)
	}
	order := TorchRandom(data.Len(), seed).Order(0) // order(pos) is the index at position pos
	parts := make([]Dataset[T], len(lengths))
	left := data.Len()
	for p, n := range lengths {
		if n < 0 || n > left {
			return nil, fmt.Errorf("dataloader: Split: lengths[%d] is %d, "+
				"must be 0 to %d, what is left of %d samples", p, n, left, data.Len())
		}
		begin := data.Len() - left // the position at which the part begins
		parts[p] = Func(n, func(ctx context.Context, i int) (T, error) {
			return data.Get(ctx, order(begin+i))
		})
		left -= n
	}
	if left > 0 {
		return nil, fmt.Errorf("dataloader: Split: the lengths %v sum to %d, "+
			"must sum to %d, the number of samples", lengths, data.Len()-left, data.Len())
	}
	return parts, nil
}

// Transform applies f to every sample as it is fetched: decode, crop, augment.
// f runs in the goroutine that fetches the sample, so it must be safe for
// concurrent use. Random numbers in f come from Rand(ctx). An error of f fails
// the sample; it should name what could not be transformed, such as a file. f
// does not get the index; if it needs one, use Func, and call data.Get(ctx, i)
// in its function. Transform panics if an argument is nil. PyTorch: the
// transform of a Dataset.
func Transform[T, U any](data Dataset[T], f func(context.Context, T) (U, error)) Dataset[U] {
	panicIf(data == nil, "Transform: the data set is nil")
	panicIf(f == nil, "Transform: the function is nil")
	return Func(data.Len(), func(ctx context.Context, i int) (transformed U, err error) {
		sample, err := data.Get(ctx, i)
		if err != nil {
			return transformed, err
		}
		return f(ctx, sample)
	})
}

// Cache keeps every sample in memory once it has been fetched. Each sample is
// fetched once, even if several goroutines ask for it at the same time. An
// error is not kept: the next Get fetches again. Cache panics if data is nil.
//
// Put decoding inside the Cache and random augmentation outside. One fetch
// serves all epochs, so Rand(ctx) inside depends only on the seed and the
// sample's index. Augmentation must copy what it changes, since the kept sample
// is returned again.
//
// The memory is that of the samples and some 150 bytes for each.
func Cache[T any](data Dataset[T]) Dataset[T] {
	panicIf(data == nil, "Cache: the data set is nil")
	var mu sync.Mutex
	// Each sample has a channel with room for one value: the sample, or nil
	// while it has not been fetched. The channel is a lock: the goroutine that
	// has received the value may fetch the sample, and sends the value back.
	// The others wait.
	locks := map[int]chan *T{} // guarded by mu
	return Func(data.Len(), func(ctx context.Context, i int) (sample T, err error) {
		mu.Lock()
		lock := locks[i]
		if lock == nil {
			lock = make(chan *T, 1)
			lock <- nil
			locks[i] = lock
		}
		mu.Unlock()
		var kept *T
		select {
		case kept = <-lock:
		case <-ctx.Done():
			return sample, context.Cause(ctx)
		}
		defer func() { lock <- kept }() // also after a panic in data.Get
		if kept != nil {
			return *kept, nil
		}
		fetched, err := data.Get(insideCache(ctx, i), i)
		if err == nil {
			kept = &fetched
		}
		return fetched, err
	})
}

// insideCache returns the context for what is inside a Cache: one fetch serves
// all epochs, so Rand must not depend on the epoch.
func insideCache(ctx context.Context, i int) context.Context {
	s := scopeOf(ctx)
	ctx, inside := withScope(ctx, s.worker, hash(s.seed, cacheSalt), spot{pos: uint64(i)})
	inside.idle = s.idle // so that Rand panics outside a loader here, too
	return ctx
}

// cacheSalt tells the seed of what is inside a Cache from that of what is
// outside.
const cacheSalt = 0x6361636865

// Rand returns the random generator of the sample that is being fetched or
// transformed, for augmentation. Its numbers depend only on the seed, the
// epoch, and the sample's position in the epoch. So they are the same for any
// number of workers or ranks, in or out of order, before and after a resume. A
// sample that PadTail repeats has another position.
//
// In the load of NewFunc the whole batch has one generator, which depends on
// the batch's first position. Its numbers therefore depend on how the epoch is
// divided into batches.
//
// The generator is valid until the function that was given ctx returns. It is
// not safe for concurrent use. Rand needs the context that a function of yours
// was given by a loader or a Map, or one of WithSeed. With any other context it
// panics, because every sample would draw the same numbers.
//
// In PyTorch each worker has generators and a queue of its own, so the numbers
// are the same until the number of workers changes.
func Rand(ctx context.Context) *rand.Rand {
	s := scopeOf(ctx) // see worker.go
	panicIf(s.idle, "Rand: the context is from no loader of this package; "+
		"pass on the context that Get was given, or make one with WithSeed")
	if s.rand == nil {
		s.rand = rand.New(&s.pcg)
	}
	if !s.seeded {
		s.pcg.Seed(hash(s.seed, s.spot.epoch), hash(s.spot.pos, s.spot.part))
		s.seeded = true
	}
	return s.rand
}

// WithSeed returns a context in which Rand uses another seed; epoch and
// position stay those of ctx. In a Get, in the function of a Map, and wherever
// else Rand works, the seed is hashed with that of ctx. So Rand(WithSeed(ctx,
// 1)) is a second generator of the sample, which is independent of the first
// and changes with Options.Seed. Two calls with one seed for one sample give
// equal generators, as a retry needs, and so do two loaders of one seed at the
// same position. For several Maps see Map.
//
// In any other context the seed is taken as it is: use WithSeed around a
// stream's loop to set the seed of its Maps. A loader has Options.Seed instead.
// Outside loaders and streams, repeated calls of Rand with this context
// continue one sequence.
func WithSeed(ctx context.Context, seed uint64) context.Context {
	s := scopeOf(ctx)
	if !s.idle {
		seed = hash(s.seed, seedSalt, seed)
	}
	ctx, _ = withScope(ctx, s.worker, seed, s.spot)
	return ctx
}

// seedSalt tells the seeds of WithSeed from that of the context.
const seedSalt = 0x73656564

// Worker returns the number of the worker in which the function that was given
// ctx runs, from 0 to Workers-1, or -1 in the loop's goroutine. Each loop, and
// each Map, counts its own workers. PyTorch: get_worker_info().id.
func Worker(ctx context.Context) int { return scopeOf(ctx).worker }

// Second reading: files and folders; streams, for data without indices.

// Files and folders.

// A File is a file's name, which is a slash-separated path inside its file
// system, and the file's content.
type File struct {
	Name string
	Data []byte
}

// Files is the data set of the files of fsys whose names match at least one
// pattern, or of all files if there is no pattern. The names are listed once,
// and sorted. A file is read when Get asks for it, so the data may be larger
// than memory. fsys is a directory (os.DirFS), an embedded tree (embed.FS), a
// zip archive (zip.Reader), ….
//
// A pattern is matched against the whole name, element by element as path.Match
// does, and the element "**" stands for any number of folders: "*.png" is a
// file at the top, "train/*/*.png" a file two folders down, "**/*.png" a file
// anywhere, "**/*.[jJ][pP][gG]" one whose extension may be in capitals. A
// pattern that matches no file is an error, and so are no files at all, and a
// folder that cannot be read. Links to files are followed. Links to folders are
// followed only where the pattern spells out their names.
func Files(fsys fs.FS, patterns ...string) (Dataset[File], error) {
	names, err := list(fsys, patterns)
	if err == nil && len(names) == 0 {
		err = errors.New("there is no file, at any depth")
	}
	if err != nil {
		return nil, fmt.Errorf("dataloader: Files: %s: %w", root(fsys), err)
	}
	return Func(len(names), func(_ context.Context, i int) (File, error) {
		data, err := fs.ReadFile(fsys, names[i])
		return File{names[i], data}, err
	}), nil
}

// root names a file system in errors: an os.DirFS is the string of its folder.
func root(fsys fs.FS) string {
	if v := reflect.ValueOf(fsys); v.Kind() == reflect.String {
		return v.String()
	}
	return fmt.Sprintf("%T", fsys)
}

// list returns the sorted names of the files that match at least one pattern,
// or of all files if there is no pattern.
func list(fsys fs.FS, patterns []string) (names []string, err error) {
	if fsys == nil {
		return nil, errors.New("the file system is nil")
	}
	all := len(patterns) == 0
	if all {
		patterns = []string{"**"}
	}
	for _, pattern := range patterns {
		found, err := glob(fsys, ".", strings.Split(pattern, "/"))
		if all && err != nil {
			return nil, err
		}
		if _, bad := path.Match(pattern, ""); bad != nil {
			err = bad
		} else if err == nil && len(found) == 0 && !all {
			err = errors.New("it matches no file; a pattern is for the whole name, " +
				"as \"**/*.png\" is, tells upper from lower case, and has no braces")
		}
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", pattern, err)
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// glob lists the files below dir that match the elements of a pattern. The
// first element is matched against the entries of dir, the others against what
// lies below:
//
//	"train", …  is a name spelled out: the others are matched below the folder
//	            train, if there is one
//	"**", …     stands for no folder: the others are matched against the
//	            entries of dir; and for any folder: the whole pattern is
//	            matched below it
//	"*", …      stands for any folder: the others are matched below it
//	"*.png"     is the last element: it is matched against the files in dir;
//	            "**" is then like "*", in dir and below
//
// A file may be listed more than once if "**" occurs more than once.
func glob(fsys fs.FS, dir string, pattern []string) (names []string, err error) {
	element, rest := pattern[0], pattern[1:]
	if len(rest) > 0 && !strings.ContainsAny(element, `*?[\`) {
		// A name spelled out: dir is not listed.
		name := path.Join(dir, element)
		names, err = glob(fsys, name, rest)
		if err != nil {
			info, missing := fs.Stat(fsys, name)
			isFile := missing == nil && !info.IsDir() // nothing lies below it
			if isFile || errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		}
		return names, err
	}
	inFolders := rest // the pattern for what lies below the folders in dir
	if element == "**" {
		inFolders = pattern
		if len(rest) > 0 { // "**" stands for no folder, too
			names, err = glob(fsys, dir, rest)
			if err != nil {
				return nil, err
			}
		}
	}
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		name := path.Join(dir, entry.Name())
		matched, err := path.Match(element, entry.Name()) // "**" matches as "*" does
		if matched && entry.IsDir() && len(inFolders) > 0 {
			var found []string
			found, err = glob(fsys, name, inFolders)
			names = append(names, found...)
		} else if matched && len(rest) == 0 {
			matched, err = isFile(fsys, name, entry.Type())
			if matched {
				names = append(names, name)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return names, nil
}

// isFile reports whether name, whose entry in its folder has the given type, is
// a regular file or a link to one.
func isFile(fsys fs.FS, name string, mode fs.FileMode) (bool, error) {
	if mode&fs.ModeSymlink != 0 {
		info, err := fs.Stat(fsys, name)
		if err != nil {
			return false, err
		}
		mode = info.Mode()
	}
	return mode.IsRegular(), nil
}

// Folder lists a tree that keeps each class in a top-level folder of its own,
// at any depth in it: "cat/1.png", "dog/old/2.png". A sample is a file's name
// and its label: label i means the folder classes[i]. classes is sorted, and so
// are the samples of each class. Nothing is read, so labels cost nothing;
// fsys.Open in a Transform reads a file.
//
// Patterns are those of Files, and are matched against the whole name, class
// included: "*/*.png" or "**/*.png". Without patterns Folder lists all files.
// In any case it leaves out files at the top and names that begin with a dot.
// Unlike Files, it follows links to folders at the top. It is an error if there
// is no folder at the top, a folder at the top has no file that matches, or a
// pattern matches no file.
//
// PyTorch: torchvision's ImageFolder, with its samples and classes; below a
// class the order of folders and files may differ.
func Folder(fsys fs.FS, patterns ...string) (
	samples Slice[Pair[string, int]], classes []string, err error,
) {
	if fsys == nil {
		return nil, nil, errors.New("dataloader: Folder: the file system is nil")
	}
	tree := classTree{fsys}
	var names []string
	entries, err := tree.ReadDir(".")
	if err == nil {
		names, err = list(tree, patterns)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("dataloader: Folder: %s: %w", root(fsys), err)
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		begin, _ := slices.BinarySearch(names, entry.Name()+"/")
		end, _ := slices.BinarySearch(names, entry.Name()+"0") // "0" follows "/"
		if begin == end {
			return nil, nil, fmt.Errorf("dataloader: Folder: %s: class %q has no file "+
				"(patterns %q); add files, or remove the folder", root(fsys), entry.Name(), patterns)
		}
		for _, name := range names[begin:end] {
			samples = append(samples, Pair[string, int]{name, len(classes)})
		}
		classes = append(classes, entry.Name())
	}
	if len(classes) == 0 {
		return nil, nil, fmt.Errorf("dataloader: Folder: %s: there is no folder at the top; "+
			"each class needs one", root(fsys))
	}
	return samples, classes, nil
}

// A classTree is a file system as Folder lists it: without names that begin
// with a dot, and with folders in place of the links to folders at the top.
type classTree struct{ fs.FS }

// ReadDir lists a folder.
func (t classTree) ReadDir(dir string) (visible []fs.DirEntry, err error) {
	entries, err := fs.ReadDir(t.FS, dir)
	for _, entry := range entries {
		name := path.Join(dir, entry.Name())
		if strings.Contains("/"+name, "/.") {
			continue
		}
		if dir == "." && entry.Type()&fs.ModeSymlink != 0 {
			if info, err := t.Stat(name); err == nil {
				entry = fs.FileInfoToDirEntry(info)
			}
		}
		visible = append(visible, entry)
	}
	return visible, err
}

// Stat follows a link. Without it, fs.Stat would open the file.
func (t classTree) Stat(name string) (fs.FileInfo, error) { return fs.Stat(t.FS, name) }

// Streams. Cursor, Item and the cursors of stages are in dataloader.go.

// A Stream is a pure function from a Cursor to the items that follow the
// cursor, up to the end of its epoch. A Stream is a definition, not an
// iterator: range over it twice, or twice at once, and its source is read
// twice. Before the range nothing is opened and no goroutine is started. After
// the range everything is closed and all goroutines have ended.
//
// A failed item is an item like any other: it has an Err, a zero Value, and a
// Next. The error of the sequence means that the sequence cannot be continued,
// and belongs to its last pair: the context has ended (then it is
// context.Cause), the cursor does not fit, or the source itself broke. A
// sequence with such an error has not reached the end of the epoch.
//
// A stream of your own is a function of this type. ExampleStream and
// ExampleStream_stage show a source and a stage. To test your own, copy it into
// a test file in this folder and call checkStream of dataloader_test.go. It
// runs in a bubble of testing/synctest, where a real connection hangs. These
// are the rules:
//
//   - A cursor with Pos 0 and a nil State is the start of an epoch, and the
//     stream begins there. Any other cursor must be one of its own: the stream
//     writes a description of itself into State, and if Load finds another one,
//     it yields one error, which wraps ErrCursor, and ends.
//   - State is any value that encoding/json writes and reads. It must not
//     change after the item has been yielded. Stages behind copy it into their
//     own, and each checkpoint has it. So it holds places, not items, and
//     digests of what is only compared.
//   - Each item, failed or not, has a Next: the same Epoch, a greater Pos, and
//     the State from which the item after it can be read.
//   - A stream looks at ctx when an item is ready. If ctx has ended, it does
//     not yield the item, and its last pair has context.Cause(ctx). At the end
//     of its data it just returns, and the epoch is complete.
//   - A source that skips items without yielding one looks at ctx meanwhile. A
//     stage need not: its source has looked before each item. A stage that
//     reorders items keeps their Value and Err, but not their Next: the cursor
//     of a Mix of many sources is larger than most items.
//   - On several ranks a stream may be opened once more, with a ctx that has
//     ended, only to learn which rank it is for. So a source looks at ctx
//     before it opens anything. A stage opens its sources all the same, all of
//     them, one after the other, with its own ctx.
//
// Map, Batch, Unbatch, Zip, Chain and Mix are functions. All other stages are
// methods.
//
// PyTorch: IterableDataset, and the nodes of torchdata.nodes.
type Stream[T any] func(ctx context.Context, from Cursor) iter.Seq2[Item[T], error]

// Epoch returns the values of one epoch, from its start. The same epoch yields
// the same values again. Errors are those of Run.
func (s Stream[T]) Epoch(ctx context.Context, epoch int) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) { s.Run(ctx, &Cursor{Epoch: epoch})(yield) }
}

// Run returns the values from *at to the end of its epoch, and keeps *at
// current as DataLoader.Run does. A failed item is a *SampleError, after which
// the loop may go on. Any other error is the last. When the last item has been
// handed over the epoch is complete, even if the context ends then. Some stages
// cannot know that an item is the last before they have asked their source for
// another one: FromSeq, Filter, OnError, Shard, Zip, Chain, Repeat and Unbatch.
// If the context ends at that item, they may end with its cause; a resume then
// only ends the epoch.
func (s Stream[T]) Run(ctx context.Context, at *Cursor) iter.Seq2[T, error] {
	panicIf(s == nil, "Run: the stream is nil; "+
		"look at the error of the function that should have made it")
	return follow(func(from Cursor) iter.Seq2[Item[T], error] { return s(ctx, from) }, at)
}

// Stages are streams made of other streams. There are two kinds.
//
// A stage that keeps the order, and always stands at a place of its source,
// passes the source's cursors on: Filter, OnError, Map, Prefetch, and Batch. It
// is made with streamOf. A stage that counts, joins or reorders makes cursors
// of its own, which contain those of its sources: Take, Repeat, Chain, Zip,
// Unbatch, Shuffle, Mix, Shard. It is made with staged. So the cursor of
// Indices(Random(9, 1)).Take(5), after two items, is
//
//	{"epoch": 0, "pos": 2, "state": {"by": "Take(5)", "source":
//		{"epoch": 0, "pos": 2, "state": {"by": "Indices(Random(9, seed 1))"}}}}
//
// Every stage reads its source in the same way: an error of the source's
// sequence ends the stage's own, and a failed item is an item.
//
//	for item, err := range source(ctx, from) {
//		if err != nil {
//			return err
//		}
//		…
//	}

// streamOf makes a stream of produce, which yields items until yield returns
// false or the epoch has ended. If the sequence cannot be continued, produce
// returns why. An item that is ready when ctx has ended is not yielded: the
// cause of ctx is the last pair. If there is no further item the epoch has
// ended, whatever has become of ctx.
//
// streamOf and staged are not inlined: each stage would have a copy of their
// closures, for each type of items, and a program would compile for half as
// long again.
//
//go:noinline
func streamOf[T any](
	produce func(ctx context.Context, from Cursor, yield func(Item[T]) bool) error,
) Stream[T] {
	return func(ctx context.Context, from Cursor) iter.Seq2[Item[T], error] {
		return func(yield func(Item[T], error) bool) {
			inner, at, err := ctx, from, error(nil)
			var top *outermost // nil if another stage is
			if noteOf(ctx) == nil {
				open := func(ctx context.Context, from Cursor) {
					produce(ctx, from, func(Item[T]) bool { return false })
				}
				top = &outermost{ctx: ctx, open: open}
				inner, at, err = top.begin(from)
			}
			stopped := false
			if err == nil {
				err = produce(inner, at, func(item Item[T]) bool {
					stopped = ctx.Err() != nil
					if stopped {
						return false
					}
					if top != nil && top.mustSign() && !top.sign(&item.Next) {
						return false
					}
					return yield(item, nil)
				})
			}
			if top != nil {
				err = cmp.Or(top.unsigned, err)
			}
			if stopped {
				err = context.Cause(ctx)
			}
			if err != nil {
				yield(Item[T]{}, err)
			}
		}
	}
}

// fromSeq describes FromSeq in cursors: nothing is known about the sequence.
const fromSeq = "FromSeq"

// FromSeq makes a stream from a sequence. seq(ctx, epoch) returns the items of
// an epoch, the same ones each time. Its errors are failed items. A seq whose
// source has broken, so that no further item can come, panics with the error:
// it becomes the last error of the loop, and the epoch is not complete. A
// source that cannot be read twice, such as standard input, cannot be resumed,
// and has only one epoch.
//
// A seq that sees that ctx has ended may return before its last item. So if ctx
// has ended when seq returns, the epoch is not complete, and its last pair has
// the cause of ctx. A resume calls seq again and skips the items before the
// cursor. If one of these fails now, and seq ends there, or later but before
// the cursor, the epoch is not complete either: the error of that item is the
// last of the loop, and the next try may succeed.
//
// The cursor of one FromSeq fits every other, because nothing is known about
// seq. So do not deal out inside seq: resumed on another number of ranks,
// samples would be lost and others would come twice. Use Stream.Shard.
// torchdata: IterableWrapper.
func FromSeq[T any](seq func(ctx context.Context, epoch int) iter.Seq2[T, error]) Stream[T] {
	panicIf(seq == nil, "FromSeq: seq is nil")
	afterItem := &stageState{By: fromSeq}
	afterFailed := &stageState{By: fromSeq, N: 1}
	return streamOf(func(ctx context.Context, from Cursor, yield func(Item[T]) bool) error {
		state, err := stateOf(from, fromSeq, oneSource)
		if err != nil {
			return err
		}
		if onlyAsked(ctx) {
			return nil
		}
		pos := 0
		var failed error // of the last item before the cursor that has failed now
		failedAt := -1   // where that item stands
		for value, err := range seq(aside(ctx), from.Epoch) {
			pos++
			if _, ok := err.(*SampleError); ok { // of a loop in seq; see itemError
				err = fmt.Errorf("FromSeq: %w", err)
			}
			if pos <= from.Pos { // it was yielded before
				if err != nil {
					failed, failedAt = err, pos
				}
				if ctx.Err() != nil {
					break
				}
				continue
			}
			next := afterItem
			if err != nil {
				value, next = *new(T), afterFailed
			}
			if !yield(Item[T]{value, err, Cursor{from.Epoch, pos, next}}) {
				return nil
			}
		}
		endsThere := pos == failedAt && state.N == 0
		tooEarly := pos < from.Pos
		switch {
		case ctx.Err() != nil: // seq may have stopped early
			return context.Cause(ctx)
		case endsThere, tooEarly && failed != nil: // seq may have ended because of the failure
			return wrapReread(failed)
		case tooEarly:
			return from.refuse("the sequence has only %d items", pos)
		}
		return nil
	})
}

// Filter keeps the items for which keep returns true, and all failed items. A
// panic in keep fails the item. keep looks at the item alone. A filter that
// remembers items before it, such as one that drops an item equal to the last,
// would yield an item again after a resume: it is a stage with a State
// (ExampleStream_stage). torchdata: Filter.
func (s Stream[T]) Filter(keep func(T) bool) Stream[T] {
	panicIf(s == nil, "Stream.Filter: the stream is nil")
	panicIf(keep == nil, "Stream.Filter: keep is nil")
	return passOn(s, "Filter", func(item *Item[T]) bool {
		if item.Err != nil {
			return true
		}
		kept := false
		err := try(func() error {
			kept = keep(item.Value)
			return nil
		})
		if err != nil {
			*item = failedItem[T]("Stream.Filter", item.Next, err)
			return true
		}
		return kept
	})
}

// OnError keeps one failed item from failing its whole Batch. f is asked about
// each failed item, as Options.OnError is about a sample: if f returns nil, the
// item is dropped; if f returns an error, that is the item's error. The
// SampleError says where the item is in s. f runs in the goroutine that reads
// the stream, once for each failed item, in their order. A resume reads the
// items after the cursor again, so f may be asked again about one that was
// dropped there.
//
// Put OnError before Batch, and behind the last stage whose resume reads items
// again, which are Shuffle and Unbatch. These stages count items. Suppose that
// an item fails for a moment, and is dropped before them. Then a resume reads
// another number of items:
//
//   - If the item fails only when a resume reads it again, the cursor is
//     refused for that moment. Try again.
//   - If the item failed before the checkpoint, the cursor is refused for ever.
//   - If another item fails in its place, the numbers are equal, and the cursor
//     is accepted: one sample comes twice, and one never.
//
// A Filter before them has the same effect, since it keeps failed items, and so
// have Batch and Unbatch before Shuffle, where one failed item stands for a
// batch.
//
// OnError may stand before Stream.Shard only if the same items fail on all
// ranks. The same holds of Filter, which keeps failed items, and Unbatch, which
// yields one failed item for a batch. If a connection breaks on one rank alone,
// its rows move: samples come twice and others never, and nothing in the
// package notices, because no rank knows the rows of another.
// ExampleStream_Repeat_ranks has OnError behind Shard.
func (s Stream[T]) OnError(f func(*SampleError) error) Stream[T] {
	panicIf(s == nil, "Stream.OnError: the stream is nil")
	panicIf(f == nil, "Stream.OnError: f is nil")
	return passOn(s, "OnError", func(item *Item[T]) bool {
		if item.Err == nil {
			return true
		}
		bad := itemError(item.Next, item.Err)
		err := try(func() error { return f(bad) })
		if err != nil && err != bad { // otherwise item.Err stays
			item.Err = fmt.Errorf("Stream.OnError: %w", err)
		}
		return err != nil
	})
}

// passOn makes a stage of the given name that yields the items of s for which
// keep returns true, with their cursors. keep may change an item.
func passOn[T any](s Stream[T], name string, keep func(item *Item[T]) bool) Stream[T] {
	return streamOf(func(ctx context.Context, from Cursor, yield func(Item[T]) bool) error {
		ctx = leaveNote(ctx, &rankNote{stage: name, always: true})
		for item, err := range s(ctx, from) {
			if err != nil {
				return err
			}
			if keep(&item) && !yield(item) {
				return nil
			}
		}
		return nil
	})
}

// failedItem is the item before next, which failed in a function of the user's
// in the named stage. The error is wrapped, so that the place of a loop in that
// function is not taken for the place of this one; see itemError.
func failedItem[T any](stage string, next Cursor, err error) Item[T] {
	return Item[T]{Err: fmt.Errorf("%s: %w", stage, err), Next: next}
}

// Take ends each epoch after n items, and does not ask the source for more. n
// must not be negative. torchdata: Header. To skip the first n items instead,
// leave a loop over s.Run after them: its cursor goes on from there.
func (s Stream[T]) Take(n int) Stream[T] {
	panicIf(s == nil, "Stream.Take: the stream is nil")
	panicIf(n < 0, "Stream.Take: n is %d, must not be negative", n)
	name := fmt.Sprintf("Take(%d)", n)
	return staged(&stamp{by: name}, oneSource, func(
		ctx context.Context, from Cursor, state stageState, yield yieldAt[T],
	) error {
		pos := from.Pos
		if pos > n {
			return from.refuse("pos must be at most %d", n)
		}
		if pos == n {
			return nil
		}
		for item, err := range s(ctx, state.Source) {
			if err != nil {
				return err
			}
			pos++
			more := yield(item, pos, freshState{source: item.Next})
			if !more || pos == n {
				return nil
			}
		}
		return nil
	})
}

// Repeat joins several epochs of s into one: epoch e covers the epochs e×times
// to e×times + times-1 of s. With times <= 0 the epoch never ends and covers
// the epochs from e on; an epoch of s without items is then an error.
// torchdata: Cycler.
func (s Stream[T]) Repeat(times int) Stream[T] {
	panicIf(s == nil, "Stream.Repeat: the stream is nil")
	times = max(times, 0)
	name, endless := fmt.Sprintf("Repeat(%d)", times), times == 0
	return joinEpochs(name, endless, times, []Stream[T]{s}, func(epoch, n int) int {
		return epoch*max(times, 1) + n
	})
}

// Chain puts streams one after the other, each with its epoch of the same
// number. PyTorch: ChainDataset.
func Chain[T any](srcs ...Stream[T]) Stream[T] {
	srcs = slices.Clone(srcs)
	for i, s := range srcs {
		panicIf(s == nil, "Chain: stream %d is nil", i)
	}
	name := fmt.Sprintf("Chain(%d)", len(srcs))
	return joinEpochs(name, false, len(srcs), srcs, func(epoch, _ int) int { return epoch })
}

// joinEpochs puts count epochs of the sources one after the other, or endless
// ones. The sources take turns: number n is source n, or n modulo their number,
// in the epoch that epochOf returns. In the cursor, N is that number and Source
// the place in the source.
func joinEpochs[T any](
	name string, endless bool, count int,
	srcs []Stream[T], epochOf func(epoch, n int) int,
) Stream[T] {
	return staged(&stamp{by: name}, oneSource, func(
		ctx context.Context, from Cursor, state stageState, yield yieldAt[T],
	) error {
		if state.N > 0 && state.N >= count && !endless {
			return from.refuse("its state is damaged: %d is not one of %d parts of %s",
				state.N, count, name)
		}
		if from.Epoch >= math.MaxInt/max(count, 1) {
			return from.refuse("the epoch is too far for %s", name)
		}
		ctx = leaveNote(ctx, &rankNote{stage: name, joins: true})
		if askSources(ctx, from.Epoch, srcs...) {
			return nil
		}
		pos := from.Pos
		for n := state.N; endless || n < count; n++ {
			source := Cursor{Epoch: epochOf(from.Epoch, n)}
			if n == state.N && !from.atStart() {
				source = state.Source
			}
			before := pos
			for item, err := range srcs[n%len(srcs)](ctx, source) {
				if err != nil {
					return err
				}
				pos++
				if !yield(item, pos, freshState{n: n, source: item.Next}) {
					return nil
				}
			}
			if endless && pos == before && source.atStart() {
				return fmt.Errorf("dataloader: Stream.%s: the stream has no items in epoch %d",
					name, source.Epoch)
			}
			isLast := !endless && n+1 == count
			if ctx.Err() != nil && !isLast { // an empty stream does not notice
				return context.Cause(ctx)
			}
		}
		return nil
	})
}

// Zip joins two streams item by item, and ends with the shorter one. If one of
// two items failed, the pair fails.
//
// Two Maps of one source draw the same random numbers: make both views of a
// sample in one Map, or join two Transforms by Pairs.
//
// Zip reads b as a coroutine (iter.Pull2), which ends the program if the loop's
// body or a source locks its goroutine to a thread (runtime.LockOSThread) while
// the loop runs. Lock before the loop, or put Prefetch(1) behind a source that
// locks.
func Zip[A, B any](a Stream[A], b Stream[B]) Stream[Pair[A, B]] {
	panicIf(a == nil, "Zip: the first stream is nil")
	panicIf(b == nil, "Zip: the second stream is nil")
	return staged(&stamp{by: "Zip"}, 2, func(
		ctx context.Context, from Cursor, state stageState, yield yieldAt[Pair[A, B]],
	) error {
		if askSources(ctx, from.Epoch, a) && askSources(ctx, from.Epoch, b) {
			return nil
		}
		pos := from.Pos
		next, stop := iter.Pull2(b(ctx, state.Sources[1]))
		defer stop()
		for x, err := range a(ctx, state.Sources[0]) {
			if err != nil {
				return err
			}
			y, err, ok := next()
			if !ok || err != nil {
				return err
			}
			var pair Item[Pair[A, B]]
			switch {
			case x.Err == nil && y.Err == nil:
				pair.Value = Pair[A, B]{x.Value, y.Value}
			case x.Err != nil && y.Err != nil:
				pair.Err = errors.Join(x.Err, y.Err)
			default:
				pair.Err = cmp.Or(x.Err, y.Err)
			}
			pos++
			moveB := &move{base: &state, source: 1, to: y.Next}
			moveA := &move{before: moveB, base: &state, source: 0, to: x.Next}
			if !yield(pair, pos, freshState{moved: moveA}) {
				return nil
			}
		}
		return nil
	})
}
