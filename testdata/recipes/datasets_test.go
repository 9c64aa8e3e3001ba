package recipes

// Data sets of your own, and how they are divided into training and test.
//
//	Example_datasetOfYourOwn  a type with Len and Get
//	Example_testOfADataset    checkDataset, a test of what a loader relies on
//	Example_pairsByName       images and labels in two folders, matched by name
//	Example_splitByKey        no patient or document on both sides, and stable when the data grow
//	Example_splitByClass      the same share of each class in every part
//	Example_crossValidation   k folds
//	Example_growingData       samples that are added between epochs
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/fstest"

	"dataloader"
)

// squares is the data set of the points (i, i²) for 0 <= i < n.
type squares struct{ n int }

func (s squares) Len() int { return s.n }

func (s squares) Get(ctx context.Context, i int) (dataloader.Tensor[float32], error) {
	x := float32(i)
	return dataloader.Tensor[float32]{Data: []float32{x, x * x}, Shape: []int{2}}, nil
}

// A data set of your own is a type with two methods. Put in your own samples.
// Get must be safe for concurrent use, because workers call it at the same
// time. If nothing but Get needs the type, Func makes the data set of a
// function. Here it is
//
//	type squares struct{ n int } // the points (i, i²) for 0 <= i < n
//
//	func (s squares) Len() int { return s.n }
//
//	func (s squares) Get(ctx context.Context, i int) (Tensor[float32], error) {
//		x := float32(i)
//		return Tensor[float32]{Data: []float32{x, x * x}, Shape: []int{2}}, nil
//	}
func Example_datasetOfYourOwn() {
	var data dataloader.Dataset[dataloader.Tensor[float32]] = squares{n: 5}
	loader, err := dataloader.New(data, dataloader.Stack[float32],
		dataloader.Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.Shape, batch.Data)
	}
	// Output:
	// [2 2] [0 0 1 1]
	// [2 2] [2 4 3 9]
	// [1 2] [4 16]
}

// checkDataset checks what a loader relies on: a sample is the same whenever it
// is fetched, and stays as it is while others are fetched. Each sample is
// fetched twice, first one after the other, then in another order from four
// goroutines. All are kept meanwhile. The error names a sample that has changed
// or differs. Rand draws the same numbers both times. If the data are large,
// check a Subset. A sample must not contain itself.
func checkDataset[T any](data dataloader.Dataset[T]) error {
	type fetched struct {
		sample T
		err    error
		was    string // what it held when it was fetched
	}
	n := data.Len()
	all := make([]fetched, 2*n)
	for pass := range 2 {
		order, goroutines := []dataloader.Sampler{dataloader.Sequential(n),
			dataloader.Random(n, 1)}[pass].Order(0), 1+3*pass
		var running sync.WaitGroup
		for g := range goroutines {
			running.Go(func() {
				for pos := g; pos < n; pos += goroutines {
					ctx := dataloader.WithSeed(context.Background(), uint64(order(pos)))
					sample, err := getSample(ctx, data, order(pos))
					all[pass*n+order(pos)] = fetched{sample, err, contents(sample, err)}
				}
			})
		}
		running.Wait()
		for k, f := range all { // also before several goroutines would race for that memory
			if f.was != "" && contents(f.sample, f.err) != f.was {
				return fmt.Errorf("sample %d has changed while others were fetched: Get reuses "+
					"memory", k%n)
			}
		}
	}
	for i := range n {
		if all[i].was != all[n+i].was {
			return fmt.Errorf("sample %d differs when it is fetched again, in another order, or "+
				"from several goroutines", i)
		}
	}
	return nil
}

// getSample is data.Get, but a panic is an error.
func getSample[T any](
	ctx context.Context, data dataloader.Dataset[T], i int,
) (sample T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("sample %d: panic: %v", i, p)
		}
	}()
	return data.Get(ctx, i)
}

// contents is a digest of a sample, with all that is behind its pointers, and
// of an error.
func contents(sample any, err error) string {
	h := sha256.New()
	writeContents(h, reflect.ValueOf(sample))
	fmt.Fprint(h, err)
	return string(h.Sum(nil))
}

// writeContents writes what v holds. Functions and channels are left out.
func writeContents(w io.Writer, v reflect.Value) {
	switch v.Kind() {
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
	case reflect.Pointer, reflect.Interface:
		writeContents(w, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			writeContents(w, v.Field(i))
		}
	case reflect.Slice, reflect.Array:
		fmt.Fprintln(w, v.Len())
		for i := range v.Len() {
			writeContents(w, v.Index(i))
		}
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int {
			return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b))
		})
		for _, key := range keys {
			fmt.Fprintln(w, key)
			writeContents(w, v.MapIndex(key))
		}
	default:
		fmt.Fprintln(w, v)
	}
}

// A test of a data set of your own: copy checkDataset, with getSample, contents
// and writeContents, into a test file. Here Get reads every sample into the
// same buffer, so all samples of a batch would be the last one.
func Example_testOfADataset() {
	file := strings.NewReader("abcdef")
	buffer := make([]byte, 2)
	reused := dataloader.Func(3, func(ctx context.Context, i int) ([]byte, error) {
		_, err := file.ReadAt(buffer, 2*int64(i))
		return buffer, err
	})
	fmt.Println(checkDataset(reused))
	fresh := dataloader.Func(3, func(ctx context.Context, i int) ([]byte, error) {
		buffer := make([]byte, 2)
		_, err := file.ReadAt(buffer, 2*int64(i))
		return buffer, err
	})
	fmt.Println(checkDataset(fresh))
	// Output:
	// sample 0 has changed while others were fetched: Get reuses memory
	// <nil>
}

// Files in two folders that belong together by name: images and labels, or
// images and masks. If a file is missing in each folder, Pairs of two Files
// joins the wrong ones without an error. match joins the files below two
// folders, at any depth, by their names without the folder and the extension,
// and refuses those without a partner. Put in your own folders. The pairs are a
// data set, and Transform reads and decodes its files.
func Example_pairsByName() {
	fsys := fstest.MapFS{ // or os.DirFS("train")
		"images/0001.jpg": {}, "labels/0001.txt": {},
		"images/0002.jpg": {},
		"images/0003.jpg": {}, "labels/0003.txt": {},
		"labels/0004.txt": {},
	}
	match := func(folders ...string) (dataloader.Slice[dataloader.Pair[string, string]], error) {
		found := map[string][2]string{} // the two names of a key, such as 0001 or day1/0001
		for side, folder := range folders {
			err := fs.WalkDir(fsys, folder, func(name string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() {
					return err
				}
				key := strings.TrimSuffix(strings.TrimPrefix(name, folder+"/"), path.Ext(name))
				both := found[key]
				if both[side] != "" {
					return fmt.Errorf("%s and %s have the same name", both[side], name)
				}
				both[side] = name
				found[key] = both
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
		var pairs dataloader.Slice[dataloader.Pair[string, string]]
		var alone []string
		for _, k := range slices.Sorted(maps.Keys(found)) { // in the same order in each process
			both := found[k]
			if both[0] == "" || both[1] == "" {
				alone = append(alone, both[0]+both[1])
			}
			pairs = append(pairs, dataloader.Pair[string, string]{First: both[0], Second: both[1]})
		}
		if len(alone) > 0 {
			return nil, fmt.Errorf("files without a partner: %v", alone)
		}
		return pairs, nil
	}

	_, err := match("images", "labels")
	fmt.Println(err)
	delete(fsys, "images/0002.jpg")
	delete(fsys, "labels/0004.txt")
	pairs, err := match("images", "labels")
	fmt.Println(pairs, err)
	// Output:
	// files without a partner: [images/0002.jpg labels/0004.txt]
	// [{images/0001.jpg labels/0001.txt} {images/0003.jpg labels/0003.txt}] <nil>
}

// A split by key: all images of a patient, or all parts of a document, are on
// one side, which a hash of the key decides. There they stay when the data
// grow, also with a larger share for the test. Split, Example_splitByClass and
// Example_crossValidation deal out samples: one patient is on both sides, and
// of more samples they make another split. Put in your own keys, and keep the
// text before the key, which is the split's seed. With few keys, or with a key
// that has much of the data, the lengths may be far from the share: look at
// them. Split first; repeat, weight or augment what is trained on.
func Example_splitByKey() {
	patient := func(image int) int { return image / 5 } // from its name, or a table
	isTest := func(image int) bool {
		sum := sha256.Sum256(fmt.Appendf(nil, "split 1, patient %d", patient(image)))
		return float64(binary.BigEndian.Uint32(sum[:]))/(1<<32) < 0.2
	}
	numbers := func(n int) dataloader.Dataset[int] {
		return dataloader.Func(n, func(_ context.Context, i int) (int, error) { return i, nil })
	}
	byKey := func(images dataloader.Dataset[int]) (parts []dataloader.Dataset[int], err error) {
		var indices [2][]int // for training, for the test
		for i := range images.Len() {
			side := 0
			if isTest(i) {
				side = 1
			}
			indices[side] = append(indices[side], i)
		}
		train, err1 := dataloader.Subset(images, indices[0])
		test, err2 := dataloader.Subset(images, indices[1])
		return []dataloader.Dataset[int]{train, test}, errors.Join(err1, err2)
	}
	bySample := func(images dataloader.Dataset[int]) ([]dataloader.Dataset[int], error) {
		n := images.Len()
		return dataloader.Split(images, 1, n-n/5, n/5)
	}

	read := func(part dataloader.Dataset[int]) (images []int) {
		loader, err := dataloader.New(part, dataloader.List[int],
			dataloader.Options{BatchSize: 100})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			images = append(images, batch...)
		}
		return images
	}
	for name, split := range [](func(dataloader.Dataset[int]) ([]dataloader.Dataset[int],
		error)){bySample, byKey} {
		parts, err1 := split(numbers(3000))
		grown, err2 := split(numbers(4500))
		if err := errors.Join(err1, err2); err != nil {
			log.Fatal(err)
		}
		patients := map[int]bool{}
		for _, image := range read(parts[0]) {
			patients[patient(image)] = true
		}
		later := read(grown[0])
		test, leaked, moved := read(parts[1]), 0, 0
		for _, image := range test {
			if patients[patient(image)] {
				leaked++
			}
			if slices.Contains(later, image) {
				moved++
			}
		}
		fmt.Println([]string{"by sample:", "by key:"}[name], len(test), "test images,", leaked,
			"of patients in the training;", moved, "in that of 4,500 images")
	}
	// Output:
	// by sample: 600 test images, 600 of patients in the training; 478 in that of 4,500 images
	// by key: 570 test images, 0 of patients in the training; 0 in that of 4,500 images
}

// A stratified split divides each class on its own, so that each part has the
// same share of every class. With balanced sampling the training draws every
// class equally often. Both need only the labels, from a column of a CSV file
// or from Folder; no sample is loaded for them. Put in your own labels and
// fraction. The same seed makes the same split. A class with fewer than five
// samples has none in the test set. To keep the classes' shares in training,
// set Shuffle instead of Sampler.
func Example_splitByClass() {
	var labels []string // 80 cats and 20 dogs
	for i := range 100 {
		labels = append(labels, []string{"cat", "cat", "dog", "cat", "cat"}[i%5])
	}
	var loaded atomic.Int64
	samples := dataloader.Func(len(labels), func(_ context.Context, i int) (string, error) {
		loaded.Add(1) // open and decode
		return labels[i], nil
	})

	classes := map[string][]int{} // the indices of each class
	for i, label := range labels {
		classes[label] = append(classes[label], i)
	}
	var train, test []int // indices
	var weights []float64 // of the samples of train
	// Keys are sorted, because the order of a map changes from run to run, and
	// with it the indices of the samples in train.
	for _, label := range slices.Sorted(maps.Keys(classes)) {
		class := classes[label]
		shuffled := dataloader.Random(len(class), 42).Order(0)
		n := len(class) / 5 // a fifth for the test
		for pos := range class {
			if i := class[shuffled(pos)]; pos < n {
				test = append(test, i)
			} else {
				train = append(train, i)
				weights = append(weights, 1/float64(len(class)-n))
			}
		}
	}
	balanced, err1 := dataloader.Weighted(weights, len(train), true, 1)
	trainSet, err2 := dataloader.Subset(samples, train)
	testSet, err3 := dataloader.Subset(samples, test)
	trainLoader, err4 := dataloader.New(trainSet, dataloader.List[string],
		dataloader.Options{BatchSize: 40, Sampler: balanced})
	testLoader, err5 := dataloader.New(testSet, dataloader.List[string],
		dataloader.Options{BatchSize: 40})
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(train), "for training,", len(test), "for the test,",
		"loaded so far:", loaded.Load())
	for _, loader := range []*dataloader.DataLoader[[]string]{trainLoader, testLoader} {
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			count := map[string]int{}
			for _, label := range batch {
				count[label]++
			}
			fmt.Println(count)
		}
	}
	// Output:
	// 80 for training, 20 for the test, loaded so far: 0
	// map[cat:16 dog:24]
	// map[cat:21 dog:19]
	// map[cat:16 dog:4]
}

// In k-fold cross-validation each of k models is tested on a part of the data
// that it has not been trained on. Split makes the parts, and Concat joins all
// but one. Change k. DataVersion names the fold, so that the loader of one fold
// refuses the cursors of another.
func Example_crossValidation() {
	data := dataloader.Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	const k = 3
	lengths := make([]int, k)
	for fold := range k {
		lengths[fold] = (fold+1)*len(data)/k - fold*len(data)/k // they differ by one at most
	}
	parts, err := dataloader.Split(data, 1, lengths...)
	if err != nil {
		log.Fatal(err)
	}
	read := func(part dataloader.Dataset[int], opts dataloader.Options) (all []int) {
		loader, err := dataloader.New(part, dataloader.List[int], opts)
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			all = append(all, batch...)
		}
		return all
	}
	for fold, test := range parts {
		train := dataloader.Concat(slices.Concat(parts[:fold], parts[fold+1:])...)
		name := fmt.Sprint("fold ", fold)
		fmt.Println(name)
		fmt.Println("  train", read(train, dataloader.Options{BatchSize: 4, Shuffle: true,
			DataVersion: name}))
		fmt.Println("  test ", read(test, dataloader.Options{BatchSize: 4}))
	}
	// Output:
	// fold 0
	//   train [2 4 9 3 0 8 7]
	//   test  [5 6 1]
	// fold 1
	//   train [5 4 9 3 6 1 7]
	//   test  [2 0 8]
	// fold 2
	//   train [6 8 1 0 2 5]
	//   test  [9 3 7 4]
}

// Data that grow between epochs: each epoch has a loader of its own, for the
// samples that are there when it begins. The checkpoint has their number N, so
// that an epoch that has begun is finished with a Subset of the first N, which
// Func makes, and the next one has all. A loader of any other number refuses
// the cursor. Add samples at the end only: index i stays the same.
func Example_growingData() {
	data := dataloader.Slice[string]{"a", "b", "c", "d"}
	type checkpoint struct {
		N  int // the samples in the epoch of At
		At dataloader.Cursor
	}
	epoch := func(c checkpoint, steps int) checkpoint {
		if c.At.State == nil { // it has not begun
			c.N = data.Len()
		}
		loader, err := dataloader.New(dataloader.Func(c.N, data.Get), dataloader.List[string],
			dataloader.Options{
				BatchSize: 2, Shuffle: true, Seed: 1, Workers: 2,
			})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Run(context.Background(), &c.At) {
			if err != nil {
				fmt.Println(strings.Split(err.Error(), ";")[0])
				return c
			}
			fmt.Println(c.N, "samples:", batch)
			if steps--; steps == 0 {
				break
			}
		}
		return c
	}
	c := epoch(checkpoint{}, 1)
	data = append(data, "e", "f")
	epoch(checkpoint{N: data.Len(), At: c.At}, -1) // an ErrCursor
	c = epoch(c, -1)
	epoch(c, -1)
	// Output:
	// 4 samples: [d c]
	// dataloader: refused cursor {epoch 0, pos 2}: it was made by Random(4, seed 1), this is Random(6, seed 1)
	// 4 samples: [b a]
	// 6 samples: [a d]
	// 6 samples: [f c]
	// 6 samples: [e b]
}
