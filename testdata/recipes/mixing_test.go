package recipes

// Several data sets or streams, mixed.
//
//	Example_mixtureOfMany    data sets with indices, by weight
//	Example_quota            exact numbers of each in every batch
//	Example_changingMixture  weights that change in the course of an epoch
//	Example_mixtureOfTokens  streams, by weight, of items or of tokens
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

import (
	"context"
	"fmt"
	"hash/crc32"
	"log"
	"math/rand/v2"
	"slices"
	"strings"

	"dataloader"
)

// A mixture is a Sampler of several data sets, which stand one after the other,
// as in Concat: set s begins at begins[s], and has the order samplers[s]. At
// each position of an epoch, pick says which set it is, and at which position
// of that set's order.
type mixture struct {
	n        int
	name     string // for cursors: other lengths, weights or seeds are another order
	samplers []dataloader.Sampler
	begins   []int
	pick     func(epoch int) func(pos int) (set, at int)
}

func (m mixture) Len() int { return m.n }

func (m mixture) String() string { return m.name }

func (m mixture) Order(epoch int) func(pos int) int {
	pick := m.pick(epoch)
	orders := make([]func(pos int) int, len(m.samplers))
	for s, sampler := range m.samplers {
		orders[s] = sampler.Order(epoch)
	}
	return func(pos int) int {
		s, at := pick(pos)
		return m.begins[s] + orders[s](at)
	}
}

// Many data sets, mixed by weight: a draw takes the same time for 1,000 data
// sets as for two. The order is a function of the position, so it resumes
// anywhere, is dealt out to ranks, and has a cursor of one line. Samples are
// drawn with replacement. The seed that draws the data set is not the one that
// draws the sample: equal seeds would draw both with one random number. Weights
// count samples; for shares of tokens divide each by its data set's mean
// length. Copy the type mixture, too.
func Example_mixtureOfMany() {
	const sets, n, seed = 1000, 40_000, 1 // n samples in an epoch
	var parts []dataloader.Dataset[int]   // a sample says of which data set it is
	weights := make([]float64, sets)
	m := mixture{n: n}
	end := 0
	for s := range sets {
		size := 5 + s%7
		parts = append(parts, dataloader.Func(size,
			func(context.Context, int) (int, error) { return s, nil }))
		weights[s] = 1 + float64(s%2)
		m.samplers = append(m.samplers, dataloader.RandomWithReplacement(size, n, seed+1))
		m.begins = append(m.begins, end)
		end += size
	}
	choose, err := dataloader.Weighted(weights, n, true, seed)
	if err != nil {
		log.Fatal(err)
	}
	sum := crc32.ChecksumIEEE(fmt.Append(nil, m.begins, end))
	m.name = fmt.Sprintf("mixture(%v, begins #%x)", choose, sum)
	m.pick = func(epoch int) func(pos int) (set, at int) {
		set := choose.Order(epoch)
		return func(pos int) (int, int) { return set(pos), pos }
	}
	loader, err := dataloader.New(dataloader.Concat(parts...), dataloader.List[int],
		dataloader.Options{BatchSize: 50, Sampler: m, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	var drawn [2]int // from data sets of weight 1, and of weight 2
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		for _, s := range batch {
			drawn[s%2]++
		}
	}
	fmt.Println(drawn)
	// Output: [13274 26726]
}

// Every batch has exactly three, two and one samples of three data sets. A
// sample of a small data set comes again only when all of that set have come,
// also across epochs; where two passes meet, it may be twice in a batch. Each
// batch is a function of its number, so an epoch resumes anywhere, and each
// rank gets whole batches. Copy the type mixture, too.
func Example_quota() {
	const steps, seed = 4, 1 // steps batches in an epoch
	parts := []dataloader.Dataset[string]{
		dataloader.Slice[string]{"a", "b", "c", "d", "e", "f", "g"},
		dataloader.Slice[string]{"X", "Y", "Z"},
		dataloader.Slice[string]{"1", "2"},
	}
	perBatch := []int{3, 2, 1}
	var m mixture
	var places [][2]int // of a batch: the set, and which of the set's samples in the batch
	end := 0
	for s, part := range parts {
		for j := range perBatch[s] {
			places = append(places, [2]int{s, j})
		}
		shuffled := dataloader.Resize(dataloader.Random(part.Len(), seed+uint64(s)),
			steps*perBatch[s])
		m.samplers = append(m.samplers, shuffled)
		m.begins = append(m.begins, end)
		end += part.Len()
	}
	m.n = steps * len(places)
	m.name = fmt.Sprintf("quota(%v of %v)", perBatch, m.samplers)
	m.pick = func(int) func(pos int) (set, at int) {
		return func(pos int) (int, int) {
			place := places[pos%len(places)]
			return place[0], pos/len(places)*perBatch[place[0]] + place[1]
		}
	}
	loader, err := dataloader.New(dataloader.Concat(parts...), dataloader.List[string],
		dataloader.Options{
			BatchSampler: dataloader.Batches(m, len(places), false), Workers: 2,
		})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	// Output:
	// [a f d Y X 1]
	// [b g e Z Z 2]
	// [c b g Y X 2]
	// [d c f Z X 1]
}

// Weights of a mixture that change in the course of an epoch: OrderFunc returns
// the whole epoch, so the share of a data set may be any function of epoch and
// position. Samples are drawn without replacement: Resize goes through each
// data set in shuffled passes, and begins another when all samples have been
// drawn. A cursor cannot distinguish two OrderFuncs of one length: change
// Options.Seed together with the weights, and the loader refuses the cursors of
// the old weights.
func Example_changingMixture() {
	easy, hard := slices.Repeat(dataloader.Slice[string]{"e"}, 30),
		slices.Repeat(dataloader.Slice[string]{"H"}, 20)
	const n = 40 // samples in an epoch
	order := dataloader.OrderFunc(n, func(epoch int) (indices []int) {
		var draw [2]func(k int) int
		for d, size := range []int{len(easy), len(hard)} {
			draw[d] = dataloader.Resize(dataloader.Random(size, uint64(d)),
				(n/size+1)*size).Order(epoch)
		}
		rng := rand.New(rand.NewPCG(1, uint64(epoch)))
		var drawn [2]int
		for pos := range n {
			d := 0
			if rng.Float64() < float64(pos)/n { // the share of the hard samples grows from 0 to 1
				d = 1
			}
			indices = append(indices, d*len(easy)+draw[d](drawn[d]))
			drawn[d]++
		}
		return indices
	})
	loader, err := dataloader.New(dataloader.Concat[string](easy, hard), dataloader.List[string],
		dataloader.Options{
			BatchSize: 10, Sampler: order, Workers: 2,
		})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(strings.Join(batch, ""))
	}
	// Output:
	// eeHeeeHHee
	// HeeHHHeHHH
	// HeHeHHeHee
	// HHHHHHHeHH
}

// MixOptions mix data sets by weight. A mix ends by one of four rules. If b
// shall start over until a ends, mix a and b.Cycle() with StopAtFirst. Weights
// of 3 and 1 spread the items of b. Strictly three items of a and then one of b
// are Unbatch(Map(Zip(Batch(a, 3, List), b), 0, join)), where join appends the
// second half of a pair to the first. Weights count items: of short and long
// documents in equal numbers hardly a token is from the short ones. For shares
// of tokens divide each weight by the mean length, or pack each source into
// rows and mix the rows.
func Example_mixtureOfTokens() {
	letters := func(text string) dataloader.Stream[string] {
		letter := func(_ context.Context, i int) (string, error) { return text[i : i+1], nil }
		return dataloader.Map(dataloader.Indices(dataloader.Sequential(len(text))), 0, letter)
	}
	a, b := letters("abcdef"), letters("XYZ")
	for _, stop := range []dataloader.Stop{dataloader.StopAtLast, dataloader.StopAtFirst,
		dataloader.CycleUntilLast, dataloader.CycleForever} {
		mix := dataloader.Mix(dataloader.MixOptions{Weights: []float64{3, 1}, Seed: 4, Stop: stop},
			a, b).Take(24)
		for letter, err := range mix.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Print(letter)
		}
		fmt.Println()
	}

	const short, long = 400, 4000 // tokens
	documents := func(length int) dataloader.Stream[int] {
		always := func(context.Context, int) (int, error) { return length, nil }
		return dataloader.Map(dataloader.Indices(dataloader.Sequential(1)).Cycle(), 0, always)
	}
	for _, weights := range [][]float64{{1, 1}, {1. / short, 1. / long}} {
		mix := dataloader.Mix(dataloader.MixOptions{Weights: weights}, documents(short),
			documents(long)).Take(1100)
		tokens := map[int]int{}
		for length, err := range mix.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			tokens[length] += length
		}
		share := 100 * float64(tokens[short]) / float64(tokens[short]+tokens[long])
		fmt.Printf("weights %v: %.0f %% of the tokens are of short documents\n", weights, share)
	}
	// Output:
	// abXcdefYZ
	// abXcdefY
	// abXcdefYabZcdef
	// abXcdefYabZcdefXabYcZdeX
	// weights [1 1]: 9 % of the tokens are of short documents
	// weights [0.0025 0.00025]: 50 % of the tokens are of short documents
}
