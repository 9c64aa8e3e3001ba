package dataloader

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"iter"
	"math"
	"math/rand/v2"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
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
	n := data.Len()
	for p, i := range indices {
		if i < 0 || i >= n {
			err := refuseIndex(i, n)
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
// parts samples that belong together, such as images of one patient. The recipe
// Example_splitByKey does neither. Split before you repeat or weight samples.
func Split[T any](data Dataset[T], seed uint64, lengths ...int) ([]Dataset[T], error) {
	if data == nil {
		return nil, errors.New("dataloader: Split: the data set is nil")
	}
	samples := data.Len()
	if samples > maxTorch { // see TorchRandom in sampler.go
		return nil, fmt.Errorf("dataloader: Split: the data set has %d samples, "+
			"may have at most %d; use Subset", samples, maxTorch)
	}
	order := TorchRandom(samples, seed).Order(0) // order(pos) is the index at position pos
	parts := make([]Dataset[T], len(lengths))
	left := samples
	for p, n := range lengths {
		if n < 0 || n > left {
			return nil, fmt.Errorf("dataloader: Split: lengths[%d] is %d, "+
				"must be 0 to %d, what is left of %d samples", p, n, left, samples)
		}
		begin := samples - left // the position at which the part begins
		parts[p] = Func(n, func(ctx context.Context, i int) (T, error) {
			return data.Get(ctx, order(begin+i))
		})
		left -= n
	}
	if left > 0 {
		return nil, fmt.Errorf("dataloader: Split: the lengths %v sum to %d, "+
			"must sum to %d, the number of samples", lengths, samples-left, samples)
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
	return withScope(ctx, &scope{
		worker: s.worker,
		seed:   hash(s.seed, cacheSalt),
		spot:   spot{pos: uint64(i)},
		idle:   s.idle, // so that Rand panics outside a loader here, too
	})
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
// In the load of NewBatchFunc the whole batch has one generator, which depends
// on the batch's first position. Its numbers therefore depend on how the epoch
// is divided into batches.
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
	return withScope(ctx, &scope{worker: s.worker, seed: seed, spot: s.spot})
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
// folder that cannot be read. A file or link whose name is not UTF-8, which
// io/fs does not open, is an error of its Get; a folder of such a name cannot
// be read. Links to files are followed. Links to folders are followed only
// where the pattern spells out their names.
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
		return File{names[i], data}, explainName(names[i], err)
	}), nil
}

// explainName explains the error of a name that is not UTF-8.
func explainName(name string, err error) error {
	if err == nil || utf8.ValidString(name) {
		return err
	}
	return fmt.Errorf("%q is not UTF-8, and io/fs opens only names that are: rename it: %w",
		name, err)
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
	if len(patterns) == 0 {
		names, err = glob(fsys, ".", []string{"**"})
	}
	for _, pattern := range patterns {
		found, err := glob(fsys, ".", strings.Split(pattern, "/"))
		if _, bad := path.Match(pattern, ""); bad != nil {
			err = bad
		} else if err == nil && len(found) == 0 {
			err = errors.New("it matches no file; a pattern is for the whole name, " +
				"as \"**/*.png\" is, tells upper from lower case, and has no braces")
		}
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", pattern, err)
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	return slices.Compact(names), err
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
		return nil, explainName(dir, err)
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
		if err != nil && !utf8.ValidString(name) {
			return true, nil // Get says why it cannot be read
		} else if err != nil {
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
// pattern matches no file. Names are compared as bytes: "café" in two Unicode
// forms (NFC, NFD) is two classes, and two keys in a shard.
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

// Streams. Cursor and Item are in dataloader.go.

// A Stream is a pure function from a Cursor to the items that follow the
// cursor, up to the end of its epoch: Items. A Stream is a definition, not an
// iterator: range over it twice, or twice at once, and its source is read
// twice. Before the range nothing is opened and no goroutine is started. After
// the range everything is closed and all goroutines have ended. The zero Stream
// is no stream; whoever is given one panics.
//
// A failed item is an item like any other: it has an Err, a zero Value, and a
// Next. The error of the sequence means that the sequence cannot be continued,
// and belongs to its last pair: the context has ended (then it is
// context.Cause), the cursor does not fit, or the source itself broke. A
// sequence with such an error has not reached the end of the epoch.
//
// NewStream makes a source of your own, and NewStage a stage (ExampleNewStream,
// ExampleNewStage). To test it, copy it into a test file in this folder and
// call checkStream of dataloader_test.go, which runs in a bubble of
// testing/synctest, where a real connection hangs. These are the rules:
//
//   - A cursor with Pos 0 and a nil State is the start of an epoch, and the
//     stream begins there. Any other cursor must be one of its own: the stream
//     writes a description of itself into State, and if Load finds another one,
//     it yields one error, which wraps ErrCursor, and ends.
//   - State is any value that encoding/json writes and reads. It must not
//     change after the item has been yielded. Stages behind copy it into their
//     own, and each checkpoint has it. So it holds places, not items, and
//     digests of what is only compared. If a source that has ended is no longer
//     in it, it holds a digest of the source's last cursor, for Shuffle and
//     Unbatch behind.
//   - Each item, failed or not, has a Next: the same Epoch, a greater Pos, and
//     the State from which the item after it can be read.
//   - A stream looks at ctx when an item is ready. If ctx has ended, it does
//     not yield the item, and its last pair has context.Cause(ctx). At the end
//     of its data it just returns, and the epoch is complete.
//   - A source that skips items without yielding one looks at ctx meanwhile. A
//     stage need not: its source has looked before each item. A stage that
//     reorders items keeps their Value and Err, but not their Next: the cursor
//     of a Mix of many sources is larger than most items.
//
// Map, Batch, Unbatch, Zip, Chain and Mix are functions. All other stages are
// methods.
//
// PyTorch: IterableDataset, and the nodes of torchdata.nodes.
type Stream[T any] struct {
	items func(ctx context.Context, from Cursor) iter.Seq2[Item[T], error]
	ranks ranks // what is known of the deals in it
}

// NewStream makes a source of your own: items returns the items that follow a
// cursor, by the rules of Stream. NewStream panics if items is nil.
//
// A source knows of no ranks. So a stream that items reads should not be dealt
// out: the package cannot see it, and would take its cursors for those of all
// ranks. Make a stage of it.
func NewStream[T any](
	items func(ctx context.Context, from Cursor) iter.Seq2[Item[T], error],
) Stream[T] {
	panicIf(items == nil, "NewStream: items is nil")
	return Stream[T]{items: items}
}

// NewStage makes a stage of your own: items makes its items of those of src, by
// the rules of Stream. It reads the src that it is given, as often as it likes.
// NewStage panics if src is the zero Stream, or items is nil.
//
// oneForOne says that the stage yields one item for each item of src, before it
// reads the next one, as a timer or a log does. Then the stage passes the
// cursors on, whatever Next it sets, and leaves ranks in step (see
// Stream.Shard). A stage that says so and does otherwise ends with an error.
// Behind any other stage of your own, which may drop items, a cursor belongs to
// the rank that made it.
//
// A stage of two sources is one of their Zip, Chain or Mix: items may read each
// of them itself, and src only says which ranks they are for. A stage that
// makes its sources when it is read, such as one for each epoch, takes one of
// them as src.
func NewStage[T, U any](
	src Stream[T], oneForOne bool,
	items func(ctx context.Context, src Stream[T], from Cursor) iter.Seq2[Item[U], error],
) Stream[U] {
	src.mustExist("NewStage")
	panicIf(items == nil, "NewStage: items is nil")
	if oneForOne {
		return oneByOne(src, items)
	}
	known := src.ranks.part("a stage of your own", true)
	known.counted = true
	inside := Stream[T]{items: src.items} // without an owner, whom the stage's cursors name
	return Stream[U]{func(ctx context.Context, from Cursor) iter.Seq2[Item[U], error] {
		return items(ctx, inside, from)
	}, known}
}

// oneByOne makes a stage that yields one item for each of src, before it reads
// the next one. The items get the cursors of those of src. If the stage does
// otherwise, the last error says so.
func oneByOne[T, U any](
	src Stream[T],
	items func(ctx context.Context, src Stream[T], from Cursor) iter.Seq2[Item[U], error],
) Stream[U] {
	return streamOf(src.ranks, func(
		ctx context.Context, from Cursor, yield func(Item[U]) bool,
	) error {
		var last Cursor // after the item of src that was read last
		read, yielded := 0, 0
		watched := streamOf(ranks{}, func(
			ctx context.Context, from Cursor, yield func(Item[T]) bool,
		) error {
			for item, err := range src.items(ctx, from) {
				if err != nil {
					return err
				}
				last = item.Next
				read++
				if read > yielded+1 || !yield(item) {
					break
				}
			}
			return nil
		})
		for item, err := range items(ctx, watched, from) {
			if err != nil {
				return err
			}
			item.Next = last
			yielded++
			if yielded != read {
				break
			}
			if !yield(item) {
				return nil
			}
		}
		if yielded != read {
			return fmt.Errorf("dataloader: NewStage: the stage is not one for one, "+
				"at %v: it must yield an item for each of src, before it reads the next", last)
		}
		return nil
	})
}

// mustExist panics in the named function if there is no stream.
func (s Stream[T]) mustExist(name string) {
	panicIf(s.items == nil, "%s: the stream is the zero Stream; "+
		"look at the error of the function that should have made it", name)
}

// Items returns the items that follow a cursor, up to the end of its epoch, for
// a stage of your own. A loop has Run, which does the bookkeeping.
func (s Stream[T]) Items(ctx context.Context, from Cursor) iter.Seq2[Item[T], error] {
	s.mustExist("Stream.Items")
	from, err := s.ranks.takeOff(from)
	if err != nil {
		return func(yield func(Item[T], error) bool) { yield(Item[T]{}, err) }
	}
	items := s.items(ctx, from)
	owner, _, several := s.ranks.owner()
	if !several {
		return items
	}
	return func(yield func(Item[T], error) bool) {
		for item, err := range items {
			if err == nil {
				item.Next.State = &ownedState{owner, item.Next.State}
			}
			if !yield(item, err) {
				return
			}
		}
	}
}

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
	s.mustExist("Stream.Run")
	return follow(func(from Cursor) iter.Seq2[Item[T], error] { return s.Items(ctx, from) }, at)
}

// Stages are streams made of other streams. There are two kinds.
//
// A stage that keeps the order, and always stands at a place of its source,
// passes the source's cursors on: Filter, OnError, Map, Prefetch, and Batch. It
// is made with streamOf. A stage that counts, joins or reorders makes cursors
// of its own, which contain those of its sources: Take, Repeat, Cycle, Chain,
// Zip, Unbatch, Shuffle, Mix, Shard. It is made with staged. So the cursor of
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
// returns why. streamOf looks at ctx, by the rules of Stream.
//
// streamOf and staged are not inlined: each stage would have a copy of their
// closures, for each type of items, and a program would compile for half as
// long again.
//
//go:noinline
func streamOf[T any](
	known ranks,
	produce func(ctx context.Context, from Cursor, yield func(Item[T]) bool) error,
) Stream[T] {
	return Stream[T]{func(ctx context.Context, from Cursor) iter.Seq2[Item[T], error] {
		return func(yield func(Item[T], error) bool) {
			stopped := false
			err := produce(ctx, from, func(item Item[T]) bool {
				stopped = ctx.Err() != nil
				return !stopped && yield(item, nil)
			})
			if stopped {
				err = context.Cause(ctx)
			}
			if err != nil {
				yield(Item[T]{}, err)
			}
		}
	}, known}
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
	return streamOf(ranks{}, func(
		ctx context.Context, from Cursor, yield func(Item[T]) bool,
	) error {
		state, err := stateOf(from, fromSeq, 0)
		if err != nil {
			return err
		}
		pos := 0
		var failed error // of the last item before the cursor that has failed now
		failedAt := -1   // where that item stands
		for value, err := range seq(ctx, from.Epoch) {
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
// (ExampleNewStage). torchdata: Filter.
func (s Stream[T]) Filter(keep func(T) bool) Stream[T] {
	s.mustExist("Stream.Filter")
	panicIf(keep == nil, "Stream.Filter: keep is nil")
	known := s.ranks.part("Filter", true)
	return streamOf(known, func(ctx context.Context, from Cursor, yield func(Item[T]) bool) error {
		for item, err := range s.items(ctx, from) {
			if err != nil {
				return err
			}
			kept := item.Err != nil
			if !kept {
				err = try(func() error {
					kept = keep(item.Value)
					return nil
				})
			}
			if err != nil {
				kept, item = true, failedItem[T]("Stream.Filter", item.Next, err)
			}
			if kept && !yield(item) {
				return nil
			}
		}
		return nil
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
// package notices, because no rank knows the rows of another. The recipe
// Example_equalSteps has OnError behind Shard.
func (s Stream[T]) OnError(f func(*SampleError) error) Stream[T] {
	s.mustExist("Stream.OnError")
	panicIf(f == nil, "Stream.OnError: f is nil")
	known := s.ranks.part("OnError", true)
	return streamOf(known, func(ctx context.Context, from Cursor, yield func(Item[T]) bool) error {
		for item, err := range s.items(ctx, from) {
			if err != nil {
				return err
			}
			if item.Err != nil {
				bad := itemError(item.Next, item.Err)
				err := try(func() error { return f(bad) })
				if err == nil {
					continue
				}
				if err != bad { // otherwise item.Err stays
					item.Err = fmt.Errorf("Stream.OnError: %w", err)
				}
			}
			if !yield(item) {
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
// must not be negative. Behind a shuffled order it takes other samples in each
// epoch: a test set is made by Split or Subset. torchdata: Header. To skip the
// first n items instead, leave a loop over s.Run after them: its cursor goes on
// from there.
func (s Stream[T]) Take(n int) Stream[T] {
	s.mustExist("Stream.Take")
	panicIf(n < 0, "Stream.Take: n is %d, must not be negative", n)
	name := fmt.Sprintf("Take(%d)", n)
	return staged(s.ranks, &stamp{by: name}, 0, func(
		ctx context.Context, from Cursor, state stageState, yield yieldAt[T],
	) error {
		pos := from.Pos
		if pos > n {
			return from.refuse("pos must be at most %d", n)
		}
		if pos == n {
			return nil
		}
		for item, err := range s.items(ctx, state.Source) {
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
// to e×times + times-1 of s. times must be at least 1.
func (s Stream[T]) Repeat(times int) Stream[T] {
	s.mustExist("Stream.Repeat")
	panicIf(times < 1, "Stream.Repeat: times is %d, must be at least 1; "+
		"Cycle repeats without an end", times)
	return joinEpochs(fmt.Sprintf("Repeat(%d)", times), times, times, []Stream[T]{s})
}

// Cycle joins the epochs of s into one that never ends: epoch e covers the
// epochs of s from e on. An epoch of s without items is an error. Its cursors
// call it Repeat(0). torchdata: Cycler.
func (s Stream[T]) Cycle() Stream[T] {
	s.mustExist("Stream.Cycle")
	return joinEpochs("Repeat(0)", 1, endless, []Stream[T]{s})
}

// Chain puts streams one after the other, each with its epoch of the same
// number. PyTorch: ChainDataset.
func Chain[T any](srcs ...Stream[T]) Stream[T] {
	srcs = slices.Clone(srcs)
	return joinEpochs(fmt.Sprintf("Chain(%d)", len(srcs)), 1, len(srcs), srcs)
}

// endless is the count of epochs that Cycle joins.
const endless = -1

// joinEpochs puts count epochs of the sources one after the other. The sources
// take turns, and times is how many epochs of a source make one of the stage.
// In the cursor, N is the number of epochs that have ended, and Source the
// place in the next one.
func joinEpochs[T any](name string, times, count int, srcs []Stream[T]) Stream[T] {
	stage := name
	if count == endless {
		stage = "Cycle"
	}
	return staged(ranksOf("Chain", srcs).part(stage, false), &stamp{by: name}, 0, func(
		ctx context.Context, from Cursor, state stageState, yield yieldAt[T],
	) error {
		if count != endless && state.N > 0 && state.N >= count {
			return from.refuse("its state is damaged: %d is not one of %d parts of %s",
				state.N, count, name)
		}
		if from.Epoch >= math.MaxInt/times {
			return from.refuse("the epoch is too far for %s", name)
		}
		pos := from.Pos
		by := &stamp{by: name, past: state.Past}
		for n := state.N; n != count; n++ {
			at := Cursor{Epoch: from.Epoch*times + n/len(srcs)}
			if n == state.N && !from.atStart() {
				at = state.Source
			}
			for item, err := range srcs[n%len(srcs)].items(ctx, at) {
				if err != nil {
					return err
				}
				pos++
				at = item.Next
				if !yield(item, pos, freshState{stamp: by, n: n, source: at}) {
					return nil
				}
			}
			if count == endless && at.atStart() {
				return fmt.Errorf("dataloader: Stream.Cycle: the stream has no items in epoch %d",
					at.Epoch)
			}
			by = by.after(at)
			isLast := n+1 == count
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
	a.mustExist("Zip")
	b.mustExist("Zip")
	return staged(a.ranks.join(b.ranks), &stamp{by: "Zip"}, 2, func(
		ctx context.Context, from Cursor, state stageState, yield yieldAt[Pair[A, B]],
	) error {
		pos := from.Pos
		next, stop := iter.Pull2(b.items(ctx, state.Sources[1]))
		defer stop()
		for x, err := range a.items(ctx, state.Sources[0]) {
			if err != nil {
				return err
			}
			y, err, ok := next()
			if !ok || err != nil {
				return err
			}
			pair := Item[Pair[A, B]]{Err: cmp.Or(x.Err, y.Err)}
			if x.Err != nil && y.Err != nil {
				pair.Err = errors.Join(x.Err, y.Err)
			}
			if pair.Err == nil {
				pair.Value = Pair[A, B]{x.Value, y.Value}
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

// A stageState is the State in a cursor of a stage, as it is saved. What N
// counts depends on the stage:
//
//	Repeat, Cycle, the epochs, or streams, that have ended; Source is a place
//	Chain          in the next one
//	Unbatch        the elements of the batch after Source that have been yielded
//	Shuffle        the items after Source that have been yielded
//	Mix            the draws
//	Shard          the items of the row that follow; see Stream.Shard
//	FromSeq        1 if the item before the cursor has failed
type stageState struct {
	By     string `json:"by"`              // describes the stage; another one refuses the cursor
	N      int    `json:"n,omitempty"`     // see above
	Source Cursor `json:"source,omitzero"` // unless the stage reads several sources at once

	// Zip and Mix, which read several sources at once.
	Sources []Cursor `json:"sources,omitempty"`
	Ended   []bool   `json:"ended,omitempty"` // which of Sources have ended

	// Repeat, Cycle, Chain and Mix, for stages that read items again and
	// compare cursors: a digest of the last cursors of the sources that have
	// ended and are not in the State. A resume passes it on.
	Past string `json:"past,omitempty"`

	// Unbatch and Shuffle, whose resume reads items again.
	Again int         `json:"again,omitempty"` // how many
	After fingerprint `json:"after,omitzero"`  // of the source's cursor after these items
}

// A freshState is the State in a cursor that a stage has just made. Each item
// of a stage allocates one, so it is kept small, and items share what they have
// in common. Its JSON is that of a stageState.
type freshState struct {
	stamp  *stamp
	n      int
	source Cursor
	again  *replay // the items that a resume reads again; nil for none
	moved  *move   // the last move of one of several sources; nil if there is one source
}

// A stamp describes a stage, in many of its cursors.
type stamp struct {
	by   string
	past string // see stageState
}

// after returns the stamp behind the end of a source, whose last cursor is
// given.
func (s stamp) after(last Cursor) *stamp {
	s.past = fingerprintOf(Cursor{State: []any{s.past, fingerprintOf(last)}}).Digest
	return &s
}

// A replay is the items that a resume reads again: their number, and the
// source's cursor after the last one.
type replay struct {
	count int
	last  Cursor
}

// A move says where one of several sources stands, whether it has ended, and
// what moved before it. The cursors of consecutive items share base and most of
// the moves, so an item of a Mix costs one move, however many sources there
// are.
type move struct {
	before *move
	base   *stageState // its Sources and Ended are those before the first move
	source int
	to     Cursor
	ended  bool
}

// saved returns the state as it is saved. It makes the digest, and applies the
// moves, which would take too long for each item.
func (f *freshState) saved() *stageState {
	s := &stageState{By: f.stamp.by, N: f.n, Source: f.source, Past: f.stamp.past}
	if f.again != nil {
		s.Again, s.After = f.again.count, fingerprintOf(f.again.last)
	}
	if f.moved != nil {
		s.Sources, s.Ended = f.moved.apply()
	}
	return s
}

// MarshalJSON encodes the state as it is saved.
func (f *freshState) MarshalJSON() ([]byte, error) { return json.Marshal(f.saved()) }

// apply returns where the sources stand after the moves up to m, and which of
// them have ended.
func (m *move) apply() (sources []Cursor, ended []bool) {
	if m.before == nil {
		sources, ended = slices.Clone(m.base.Sources), slices.Clone(m.base.Ended)
	} else {
		sources, ended = m.before.apply()
	}
	sources[m.source], ended[m.source] = m.to, m.ended
	return sources, ended
}

// stateOf returns the State of a cursor that the stage of the given name has
// made, or says why the cursor does not fit. At the start of epoch e each
// source is at the start of its own epoch e.
func stateOf(from Cursor, name string, sources int) (stageState, error) {
	var s stageState
	if err := from.fit(name, &s.By, &s); err != nil {
		return s, err
	}
	if from.atStart() {
		s.Source = from
		s.Sources = slices.Repeat([]Cursor{from}, sources)
		s.Ended = make([]bool, sources)
		return s, nil
	}
	negative := min(s.N, s.Again) < 0
	tooFar := max(s.N, from.Pos) > math.MaxInt/2 // sums would overflow
	tooMany := s.Again > 0 && s.N > s.Again      // more items yielded than read
	others := len(s.Sources) != sources || len(s.Ended) != sources
	if negative || tooFar || tooMany || others {
		return s, from.refuse("its state is damaged: n is %d, again %d, "+
			"and it has %d of %d sources", s.N, s.Again, len(s.Sources), sources)
	}
	return s, nil
}

// checkReread says that a source has changed, if the items that a stage has
// read again are not those that it had read before the cursor. There are n now,
// and after them the source stands at last. If N is 0, nothing is read again,
// and checkReread returns nil.
//
// If an item that is read again has failed, perhaps only for a moment, its
// error is returned, and the cursor is not refused: a program that began the
// epoch again would repeat what was yielded.
func (s *stageState) checkReread(from Cursor, n int, last Cursor, failed error) error {
	if s.N == 0 {
		return nil
	}
	now := fingerprintOf(last)
	switch {
	case n == s.Again && now == s.After:
		return nil
	case failed != nil:
		return wrapReread(failed)
	}
	return from.refuse("the source has changed, or only its Options.DataVersion "+
		"(leave a new one unset until the next epoch): it is %s now, with %d items up to pos %d, "+
		"and was %s, with %d up to pos %d",
		cmp.Or(now.By, s.After.By), n, now.Pos, s.After.By, s.Again, s.After.Pos)
}

// wrapReread returns the last error of a stage whose source has other items
// before the cursor than it had, one of which has failed.
func wrapReread(failed error) error {
	return fmt.Errorf("dataloader: an item before the cursor failed when it was read again, "+
		"or the source has changed: %w", failed)
}

// A fingerprint stands for a source's cursor that a resume only compares. It
// has a digest in place of the cursor's State: a stage that saved two whole
// cursors of its source would double the size of its own, and twelve such
// stages would make half a megabyte.
type fingerprint struct {
	Pos    int    `json:"pos"`
	Digest string `json:"digest"`
	By     string `json:"by"` // the innermost first source, which names a shard or a data set
}

// fingerprintOf returns the fingerprint of a cursor. The digest of a stage's
// cursor is made of the fingerprints of its sources' cursors. If the stage
// reads items again, only the source's cursor after these items counts. To
// include the cursor before them would double the time with each such stage. A
// State that is not a stageState is digested whole: a source's, or that of a
// stage of the user's with fields of its own.
func fingerprintOf(c Cursor) fingerprint {
	s := new(stageState)
	if fresh, ok := c.State.(*freshState); ok {
		s = fresh.saved()
	} else {
		data, _ := json.Marshal(c.State)
		err := cmp.Or(c.Load(s), decodeStrictly(data, new(stageState)))
		if err != nil || s.Again > 0 != (s.After.Digest != "") {
			s = &stageState{By: s.By}
		}
	}
	var parts []fingerprint
	if s.Again > 0 {
		parts = append(parts, s.After)
	} else if s.Source.State != nil {
		parts = append(parts, fingerprintOf(s.Source))
	}
	for _, source := range s.Sources {
		parts = append(parts, fingerprintOf(source))
	}
	first, h := s.By, fnv.New64a()
	if len(parts) > 0 {
		first = parts[0].By
		fmt.Fprintf(h, "%d %d %q %d %d %v %v", c.Epoch, c.Pos, s.By, s.N, s.Again, s.Ended, parts)
		if s.Past != "" {
			fmt.Fprintf(h, " after %s", s.Past)
		}
	} else {
		if s.By == fromSeq { // whether its last item has failed does not count
			c.State = stageState{By: fromSeq}
		}
		// Saved digests may be older than this field in the State of Tar.
		parts := strings.Split(c.String(), `,"tar key hashes":"`)
		io.WriteString(h, parts[0])
		for _, part := range parts[1:] {
			_, after, _ := strings.Cut(part, `"`)
			io.WriteString(h, after)
		}
	}
	return fingerprint{c.Pos, fmt.Sprintf("%016x", h.Sum64()), first}
}

// staged makes a stage with cursors that have its stamp. produce begins at the
// state of the cursor. sources is the number of cursors in the state's Sources,
// or 0 if the state has one Source.
//
//go:noinline
func staged[T any](
	known ranks, by *stamp, sources int,
	produce func(ctx context.Context, from Cursor, state stageState, yield yieldAt[T]) error,
) Stream[T] {
	known.counted = true
	return streamOf(known, func(ctx context.Context, from Cursor, yield func(Item[T]) bool) error {
		state, err := stateOf(from, by.by, sources)
		if err != nil {
			return err
		}
		return produce(ctx, from, state, func(item Item[T], pos int, next freshState) bool {
			if next.stamp == nil {
				next.stamp = by
			}
			return yield(Item[T]{item.Value, item.Err, Cursor{from.Epoch, pos, &next}})
		})
	})
}

// A yieldAt yields an item of a stage that makes its own cursors: pos and next
// become the Pos and the State of the item's Next.
type yieldAt[T any] func(item Item[T], pos int, next freshState) bool

// ranks is what a stream knows of the deals in it, from the moment that it is
// made. A deal, which is Stream.Shard or StreamOf, gives each rank its own
// items, and yet makes cursors that fit all ranks: after the same number of
// steps all of them stand at the same place. Map, Prefetch, Take, Zip and a
// stage of one's own that is one for one leave that as it is. Other stages put
// the ranks out of step: each rank drops other items, or comes to the end of a
// source at another step. From there on the cursors have an owner, the rank
// that made them, and every other rank refuses them. Only the deals before a
// stage count: a stream that is shuffled and then dealt out is in step.
//
// Inside a pipeline cursors have no owner. Items, by which the outermost stream
// is read, puts the owner on and takes it off.
type ranks struct {
	deals   []dealt // the last deal first
	counted bool    // whether a stage behind the last deal counts the items anew
}

// dealt is what is known of one deal, or of Tar, whose cursors name its rank
// themselves.
type dealt struct {
	rank    Rank
	size    int    // of a batch of the rank in a step; 0 in Tar
	uneven  bool   // whether it is under UnevenTail
	parting string // the first stage that puts the ranks out of step, or ""
}

// deal returns what is known behind a deal.
func (r ranks) deal(rank Rank, size int, tail Tail) ranks {
	deal := dealt{rank, size, tail == UnevenTail, ""}
	return ranks{deals: append([]dealt{deal}, r.deals...)}
}

// part returns what is known behind a stage that puts the ranks out of step,
// always or only under UnevenTail.
func (r ranks) part(stage string, always bool) ranks {
	r.deals = slices.Clone(r.deals)
	for i, d := range r.deals {
		if d.size > 0 && (always || d.uneven) {
			r.deals[i].parting = cmp.Or(d.parting, stage)
		}
	}
	return r
}

// join returns what is known behind a stage that reads two sources.
func (r ranks) join(other ranks) ranks {
	if !slices.Equal(r.deals, other.deals) {
		r.deals = slices.Concat(r.deals, other.deals)
	}
	return r
}

// ranksOf returns what is known behind the named stage, which reads several
// sources.
func ranksOf[T any](name string, srcs []Stream[T]) (r ranks) {
	for _, s := range srcs {
		s.mustExist(name)
		r = r.join(s.ranks)
	}
	return r
}

// index tells the ranks apart whose items have the same Pos: 0 is the first of
// them, or the only one. Straight behind Shard the Pos tells.
func (r ranks) index() (index uint64) {
	for i, d := range slices.Backward(r.deals) {
		if i > 0 || r.counted {
			index = index*uint64(d.rank.Count) + uint64(d.rank.Index)
		}
	}
	return index
}

// steps says what a step is, in the names of stages that read items again: a
// resume with another number of ranks, or of samples in a batch, would read
// others.
func (r ranks) steps() (steps string) {
	for _, d := range r.deals {
		if d.size > 0 {
			steps += fmt.Sprintf(", ranks %d, batches of %d", d.rank.Count, d.size)
		}
	}
	return steps
}

// owner returns the ranks that are out of step, as a cursor names them, the
// first stage that puts them out of step, and whether there are several: the
// cursors of the only rank fit any number.
func (r ranks) owner() (owner, parting string, several bool) {
	var parted []Rank
	for _, d := range r.deals {
		if d.parting != "" {
			parted = append(parted, d.rank)
			parting = cmp.Or(parting, d.parting)
			several = several || d.rank.Count > 1
		}
	}
	if len(slices.Compact(slices.Clone(parted))) == 1 { // usually all deals are of one rank
		parted = parted[:1]
	}
	return strings.Trim(fmt.Sprint(parted), "[]"), parting, several
}

// An ownedState is the State in a cursor that has an owner.
type ownedState struct {
	Owner string `json:"of rank"`
	State any    `json:"state"` // of the stream
}

// ofLoader is for itemError.
func (o *ownedState) ofLoader() bool {
	own, ok := o.State.(interface{ ofLoader() bool })
	return ok && own.ofLoader()
}

// takeOff takes the owner off a cursor, or refuses that of another rank.
func (r ranks) takeOff(from Cursor) (Cursor, error) {
	var state json.RawMessage
	saved := ownedState{State: &state}
	data, _ := json.Marshal(from.State)
	if decodeStrictly(data, &saved) != nil || saved.Owner == "" {
		return from, nil
	}
	switch here, parting, _ := r.owner(); {
	case here == "":
		return from, from.refuse("it was made by rank %s, and the ranks were out of step; "+
			"here no stage puts ranks out of step", saved.Owner)
	case here != saved.Owner:
		return from, from.refuseRank(saved.Owner, here, parting)
	}
	from.State = state
	return from, nil
}
