package recipes

// In which order samples come, and which ones.
//
//	Example_rareClasses      rare classes as often as the others
//	Example_weightsByLoss    weights that follow the loss
//	Example_fewClasses       P classes with K samples each in a batch
//	Example_oneKind          batches of one source or shape
//	Example_repeatedSamples  each sample several times in a batch
//	Example_stepsPerEpoch    epochs of a number of steps
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"log"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"dataloader"
)

// Rare classes come as often as the others if the weight of each sample is 1
// divided by the size of its class. Put in your own samples and labels. An
// epoch then repeats samples of rare classes and leaves out samples of frequent
// ones, so augment when you train, and evaluate without a sampler.
func Example_rareClasses() {
	// names and labels: 90 cats and 10 dogs
	var samples dataloader.Slice[dataloader.Pair[string, int]]
	for i := range 100 {
		label := 0
		if i%10 == 9 {
			label = 1
		}
		samples = append(samples, dataloader.Pair[string, int]{First: fmt.Sprintf("%d.png", i),
			Second: label})
	}
	sizes := map[int]int{}
	for _, s := range samples {
		sizes[s.Second]++
	}
	weights := make([]float64, len(samples))
	for i, s := range samples {
		weights[i] = 1 / float64(sizes[s.Second])
	}
	// With replacement: there are only 10 dogs.
	balanced, err := dataloader.Weighted(weights, len(samples), true, 1)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := dataloader.New(samples, dataloader.List[dataloader.Pair[string, int]],
		dataloader.Options{BatchSize: 25, Sampler: balanced})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		count := [2]int{}
		for _, s := range batch {
			count[s.Second]++
		}
		fmt.Println("cats", count[0], "dogs", count[1])
	}
	// Output:
	// cats 14 dogs 11
	// cats 12 dogs 13
	// cats 13 dogs 12
	// cats 14 dogs 11
}

// Weights that follow the loss: a loader for each round of the training, which
// is an epoch here. The checkpoint has the weights of the round that has begun,
// what was measured in it, and the cursor, which only a loader with the same
// weights accepts. So a training that is interrupted within a round makes the
// same weights as one that is not. On several ranks gather what was measured
// from all of them before a checkpoint, and save it once. For the weights of
// data sets let mixture of Example_mixtureOfMany choose by them.
func Example_weightsByLoss() {
	const n, rounds = 8, 4
	data := dataloader.Func(n, func(_ context.Context, i int) (int, error) { return i, nil })
	type checkpoint struct {
		Weights, Losses [n]float64 // of the round of At; of the last time that a sample was seen
		At              dataloader.Cursor
	}
	train := func(saved []byte, steps int) []byte {
		var c checkpoint
		if err := json.Unmarshal(saved, &c); err != nil {
			log.Fatal(err)
		}
		for c.At.Epoch < rounds && steps != 0 {
			if c.At.State == nil { // the round has not begun
				for i, loss := range c.Losses {
					c.Weights[i] = 0.1 + loss // each sample has a chance
				}
			}
			sampler, err := dataloader.Weighted(c.Weights[:], 3*n, true, 1)
			if err != nil {
				log.Fatal(err)
			}
			loader, err := dataloader.New(data, dataloader.List[int],
				dataloader.Options{BatchSize: 4, Sampler: sampler, Workers: 2})
			if err != nil {
				log.Fatal(err)
			}
			for batch, err := range loader.Run(context.Background(), &c.At) {
				if err != nil {
					log.Fatal(err)
				}
				for _, i := range batch {
					c.Losses[i] = float64(i) / 8 // stands for the training
				}
				if steps--; steps == 0 {
					break
				}
			}
		}
		saved, err := json.Marshal(c)
		if err != nil {
			log.Fatal(err)
		}
		return saved
	}
	whole := train([]byte("{}"), -1)
	part := []byte("{}")
	for range rounds * 6 {
		part = train(part, 1) // a process for each step
	}
	same := bytes.Equal(train(part, -1), whole)
	fmt.Println("the same after an interruption at every step:", same)
	var c checkpoint
	if err := json.Unmarshal(whole, &c); err != nil {
		log.Fatal(err)
	}
	fmt.Println("weights", c.Weights)
	// Output:
	// the same after an interruption at every step: true
	// weights [0.1 0.225 0.35 0.475 0.6 0.725 0.85 0.975]
}

// A fewClasses is a batch sampler: each batch has a group of samples of each of
// perBatch classes. A pass gives every class one turn, except for the classes
// that are left over, which are others in each pass.
type fewClasses struct {
	classes          [][]int                   // the indices of each class
	groups           []dataloader.BatchSampler // of positions in a class, one or more
	perBatch, passes int                       // passes in an epoch
}

func (f fewClasses) Len() int { return f.passes * (len(f.classes) / f.perBatch) }

func (f fewClasses) String() string {
	return fmt.Sprintf("fewClasses(%d of %d, passes %d, %v)",
		f.perBatch, len(f.classes), f.passes, f.groups[0])
}

func (f fewClasses) Batches(epoch int) func(batch int) []int {
	batches := len(f.classes) / f.perBatch // in a pass
	return func(batch int) (indices []int) {
		pass := epoch*f.passes + batch/batches
		turn := dataloader.Random(len(f.classes), 1).Order(pass)
		for t := range f.perBatch {
			c := turn(batch%batches*f.perBatch + t)
			n := f.groups[c].Len()
			for _, pos := range f.groups[c].Batches(pass / n)(pass % n) {
				indices = append(indices, f.classes[c][pos])
			}
		}
		return indices
	}
}

// A batch sampler of your own is a type with two methods, and may build on
// Batches. Here each batch has two classes with two samples each, as losses
// that compare samples need it, and two ranks have a batch each. String names
// what makes the order, so that a cursor of another order is refused. Copy the
// type fewClasses, too.
func Example_fewClasses() {
	data := dataloader.Slice[string]{
		"cat 0", "dog 1", "cat 2", "dog 3", "cow 4", "cat 5", "cow 6", "dog 7", "cat 8", "dog 9",
	}
	cats, dogs, cows := []int{0, 2, 5, 8}, []int{1, 3, 7, 9}, []int{4, 6}
	sampler := fewClasses{classes: [][]int{cats, dogs, cows}, perBatch: 2, passes: 4}
	for c, class := range sampler.classes {
		// two samples each
		group := dataloader.Batches(dataloader.Random(len(class), uint64(c)), 2, true)
		sampler.groups = append(sampler.groups, group)
	}
	for rank := range 2 {
		loader, err := dataloader.New(data, dataloader.List[string], dataloader.Options{
			BatchSampler: sampler, Rank: dataloader.Rank{Index: rank, Count: 2},
		})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("rank %d %q\n", rank, batch)
		}
	}
	// Output:
	// rank 0 ["cat 5" "cat 2" "dog 9" "dog 7"]
	// rank 0 ["cat 0" "cat 8" "cow 6" "cow 4"]
	// rank 1 ["cow 4" "cow 6" "cat 8" "cat 0"]
	// rank 1 ["dog 7" "dog 9" "cat 2" "cat 5"]
}

// A oneKind is a batch sampler whose batches are of one kind each.
type oneKind struct {
	kinds [][]int // the indices of each kind
	size  int     // of a batch; the last of a kind may be smaller
	seed  uint64
}

func (o oneKind) batches(kind int) dataloader.BatchSampler {
	return dataloader.Batches(dataloader.Random(len(o.kinds[kind]), o.seed+1+uint64(kind)), o.size,
		false)
}

func (o oneKind) Len() (n int) {
	for kind := range o.kinds {
		n += o.batches(kind).Len()
	}
	return n
}

func (o oneKind) String() string {
	sum := crc32.ChecksumIEEE(fmt.Append(nil, o.kinds))
	return fmt.Sprintf("oneKind(#%x, size %d, seed %d)", sum, o.size, o.seed)
}

func (o oneKind) Batches(epoch int) func(k int) []int {
	var all [][2]int // a kind, and the number of a batch of it
	var batches []func(k int) []int
	for kind := range o.kinds {
		for k := range o.batches(kind).Len() {
			all = append(all, [2]int{kind, k})
		}
		batches = append(batches, o.batches(kind).Batches(epoch))
	}
	order := dataloader.Random(len(all), o.seed).Order(epoch)
	return func(k int) (indices []int) {
		b := all[order(k)]
		for _, pos := range batches[b[0]](b[1]) {
			indices = append(indices, o.kinds[b[0]][pos])
		}
		return indices
	}
}

// Batches of one kind: all samples of a batch have the same source, or the same
// shape, which Stack needs. Batches of all kinds come in random order, and each
// sample once an epoch, those of rare kinds, too. Put in what tells the kinds
// apart. The order resumes at any batch, on any number of ranks. In a step two
// ranks may have different kinds. Copy the type oneKind, too.
func Example_oneKind() {
	images := strings.Fields("wide tall wide wide tall wide square wide tall") // or their shapes
	byName := map[string][]int{}
	for i, kind := range images {
		byName[kind] = append(byName[kind], i)
	}
	sampler := oneKind{size: 2, seed: 1}
	for _, kind := range slices.Sorted(maps.Keys(byName)) { // in the same order in each process
		sampler.kinds = append(sampler.kinds, byName[kind])
	}
	for _, opts := range []dataloader.Options{
		{BatchSize: 2, Shuffle: true},
		{BatchSampler: sampler},
	} {
		loader, err := dataloader.New(dataloader.Slice[string](images), dataloader.List[string],
			opts)
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Print(batch)
		}
		fmt.Println()
	}
	// Output:
	// [wide wide][wide tall][tall wide][square tall][wide]
	// [wide wide][tall][wide wide][wide][tall tall][square]
}

// A repeated is a sampler that draws each sample of another one several times
// in a row.
type repeated struct {
	dataloader.Sampler
	times int
}

func (r repeated) Len() int { return r.Sampler.Len() * r.times }

func (r repeated) String() string { return fmt.Sprint(r.Sampler, ", each ", r.times, " times") }

func (r repeated) Order(epoch int) func(pos int) int {
	order := r.Sampler.Order(epoch)
	return func(pos int) int { return order(pos / r.times) }
}

// Each sample several times in a batch, as repeated augmentation and groups of
// answers to one question need it. Rand differs from position to position, so
// each time has other random numbers. A BatchSampler deals out whole batches,
// so a group stays on one rank; Options.Sampler would deal it out to several.
// Copy the type repeated, too.
func Example_repeatedSamples() {
	data := dataloader.Func(4, func(ctx context.Context, i int) (string, error) {
		return fmt.Sprintf("%c%d", 'a'+i, dataloader.Rand(ctx).IntN(100)), nil // augment
	})
	const times, groups = 3, 2 // samples in a group, groups in a batch
	sampler := repeated{dataloader.Random(data.Len(), 1), times}
	for rank := range 2 {
		loader, err := dataloader.New(data, dataloader.List[string], dataloader.Options{
			BatchSampler: dataloader.Batches(sampler, times*groups, false),
			Rank:         dataloader.Rank{Index: rank, Count: 2},
		})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("rank", rank, batch)
		}
	}
	// Output:
	// rank 0 [d39 d46 d3 c35 c72 c55]
	// rank 1 [b40 b73 b89 a39 a39 a83]
}

// Workers end with their epoch, so each epoch begins with a wait for its first
// batch. If epochs are short, make them longer: Resize joins several passes
// through the data into one epoch, here three, and the workers load the next
// pass ahead. The cursor's Epoch counts the joined epochs, and the pass follows
// from its Pos. If BatchSize does not divide the number of samples, some
// batches hold samples of two passes.
func Example_stepsPerEpoch() {
	const passes = 3
	var fetched atomic.Int64
	second := make(chan bool) // closed when the first sample of the second pass is fetched
	data := dataloader.Func(4, func(ctx context.Context, i int) (int, error) {
		if fetched.Add(1) == 5 {
			close(second)
		}
		return i, nil
	})
	sampler := dataloader.Resize(dataloader.Random(data.Len(), 1), passes*data.Len())
	loader, err := dataloader.New(data, dataloader.List[int],
		dataloader.Options{BatchSize: 2, Sampler: sampler, Workers: 1})
	if err != nil {
		log.Fatal(err)
	}
	var at dataloader.Cursor
	for batch, err := range loader.Run(context.Background(), &at) {
		if err != nil {
			log.Fatal(err)
		}
		pass := at.Epoch*passes + (at.Pos-1)/data.Len()
		fmt.Println("pass", pass, batch, "cursor", at.Epoch, at.Pos)
		if at.Pos == data.Len() {
			<-second // would wait for ever if the worker waited for the end of the loop body
			fmt.Println("the worker is ahead in pass 1, the loop body still in pass 0")
		}
	}
	fmt.Println("then epoch", at.Epoch)
	// Output:
	// pass 0 [3 2] cursor 0 2
	// pass 0 [1 0] cursor 0 4
	// the worker is ahead in pass 1, the loop body still in pass 0
	// pass 1 [0 1] cursor 0 6
	// pass 1 [2 3] cursor 0 8
	// pass 2 [1 2] cursor 0 10
	// pass 2 [3 0] cursor 0 12
	// then epoch 1
}
