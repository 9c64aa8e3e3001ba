package recipes

// Several processes that train together.
//
//	Example_rankFromEnv        torchrun, srun, mpirun, Flux, a Kubernetes indexed Job; tensor parallel
//	Example_lastSamples        what becomes of the samples that are left over
//	Example_evenWork           equal work in each step
//	Example_badSamplesOnRanks  OnError on ranks that take equal steps
//	Example_shardedStream      a stream, dealt out
//	Example_equalSteps         bad items, full batches and equal steps
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"

	"dataloader"
)

// RankFromEnv reads the rank that torchrun, mpirun, srun or a Kubernetes
// indexed Job sets in the environment. Rank 0's cursor resumes all ranks if
// they step together; without an all-reduce save each rank's cursor, and resume
// all from the smallest. Without a launcher Count is 0, by which nothing can be
// divided. Consecutive processes that share a replica of the model must load
// the same batches, so they are one rank here.
func Example_rankFromEnv() {
	// In case srun has started this test: WORLD_SIZE must not be below it.
	os.Unsetenv("SLURM_STEP_NUM_TASKS")
	defer os.Unsetenv("RANK")
	defer os.Unsetenv("WORLD_SIZE")

	data := dataloader.Slice[string]{"a", "b", "c", "d", "e", "f", "g", "h"}
	const global = 4 // the samples in a step of all ranks
	train := func(perReplica int) {
		rank, err := dataloader.RankFromEnv()
		if err != nil {
			log.Fatal(err)
		}
		processes := max(1, rank.Count)
		if processes%perReplica != 0 {
			log.Fatalf("%d processes make no replicas of %d", processes, perReplica)
		}
		fmt.Print("process ", rank.Index)
		rank = dataloader.Rank{Index: rank.Index / perReplica, Count: processes / perReplica}
		fmt.Print(" is rank ", rank.Index, " of ", rank.Count, ":")
		loader, err := dataloader.New(data, dataloader.List[string],
			dataloader.Options{BatchSize: global / rank.Count, Rank: rank})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Print(" ", batch)
		}
		fmt.Println()
	}
	for index := range 4 { // four processes, two of which share a replica
		os.Setenv("RANK", fmt.Sprint(index)) // as torchrun does
		os.Setenv("WORLD_SIZE", "4")
		train(2)
	}
	// Output:
	// process 0 is rank 0 of 2: [a c] [e g]
	// process 1 is rank 0 of 2: [a c] [e g]
	// process 2 is rank 1 of 2: [b d] [f h]
	// process 3 is rank 1 of 2: [b d] [f h]
}

// Tail says how four ranks share an epoch of ten samples. PadTail repeats the
// first samples and DropTail leaves out the last, so that all ranks take the
// same number of steps: train with one of them. UnevenTail counts every sample
// once: evaluate with it.
func Example_lastSamples() {
	data := dataloader.Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	names := map[dataloader.Tail]string{dataloader.PadTail: "pad", dataloader.DropTail: "drop",
		dataloader.UnevenTail: "uneven"}
	for _, tail := range []dataloader.Tail{dataloader.PadTail, dataloader.DropTail,
		dataloader.UnevenTail} {
		var steps [][]int
		for rank := range 4 {
			loader, err := dataloader.New(data, dataloader.List[int], dataloader.Options{
				BatchSize: 3, Rank: dataloader.Rank{Index: rank, Count: 4}, Tail: tail,
			})
			if err != nil {
				log.Fatal(err)
			}
			for batch, err := range loader.Epoch(context.Background(), 0) {
				if err != nil {
					log.Fatal(err)
				}
				steps = append(steps, batch)
			}
		}
		fmt.Println(names[tail], steps)
	}
	// Output:
	// pad [[0 4 8] [1 5 9] [2 6 0] [3 7 1]]
	// drop [[0 4] [1 5] [2 6] [3 7]]
	// uneven [[0 4 8] [1 5 9] [2 6] [3 7]]
}

// An evenWork is a batch sampler that deals each batch of another one out to
// ranks, so that the batches of a step cost nearly the same.
type evenWork struct {
	dataloader.BatchSampler           // of batches for all ranks together
	cost                    []float64 // of each sample
	ranks                   int
}

func (e evenWork) Len() int { return e.BatchSampler.Len() * e.ranks }

func (e evenWork) String() string { return fmt.Sprint(e.BatchSampler, " on ", e.ranks, " ranks") }

func (e evenWork) Batches(epoch int) func(k int) []int {
	step := e.BatchSampler.Batches(epoch)
	return func(k int) []int {
		indices := slices.Clone(step(k / e.ranks))
		dearest := func(a, b int) int { return cmp.Compare(e.cost[b], e.cost[a]) }
		slices.SortStableFunc(indices, dearest)
		batches, costs := make([][]int, e.ranks), make([]float64, e.ranks)
		most := (len(indices) + e.ranks - 1) / e.ranks
		for _, i := range indices {
			to := -1 // the cheapest batch with room
			for r, batch := range batches {
				if len(batch) < most && (to < 0 || costs[r] < costs[to]) {
					to = r
				}
			}
			batches[to] = append(batches[to], i)
			costs[to] += e.cost[i]
		}
		return batches[k%e.ranks]
	}
}

// In each step all ranks wait for the one with the most work. The samples of a
// step stay those of a random order, here, and are dealt out to the ranks by
// cost: the dearest first, each to the cheapest rank that has room. All ranks
// have equally many samples, so a mean over ranks stays right. A text of L
// tokens costs a transformer L + L²/c; measure c. What is left is mostly the
// longest text alone. Without the limit of samples a step takes up to 3 % less,
// and the method of Karmarkar and Karp gains 0.3 % more in 25 times as long.
// For texts that are padded see Example_bucketsOnRanks. Batches of the global
// order should be full, hence true. The cursor resumes the same number of
// ranks. Copy the type evenWork, too.
func Example_evenWork() {
	const ranks, size, n = 8, 16, 4096
	cost := make([]float64, n)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range cost {
		length := math.Exp(6 + rng.NormFloat64()) // 660 tokens on average, and few are long
		cost[i] = length + length*length/4096
	}
	texts := dataloader.Slice[float64](cost) // stands for the texts
	random := dataloader.Random(n, 1)
	for _, opts := range []dataloader.Options{
		{Sampler: random, BatchSize: size},
		{BatchSampler: evenWork{dataloader.Batches(random, ranks*size, true), cost, ranks}},
	} {
		const steps = n / ranks / size
		var slowest, sum [steps]float64
		for rank := range ranks {
			opts.Rank = dataloader.Rank{Index: rank, Count: ranks}
			loader, err := dataloader.New(texts, dataloader.List[float64], opts)
			if err != nil {
				log.Fatal(err)
			}
			step := 0
			for batch, err := range loader.Epoch(context.Background(), 0) {
				if err != nil {
					log.Fatal(err)
				}
				takes := 0.0
				for _, cost := range batch {
					takes += cost
				}
				slowest[step] = max(slowest[step], takes)
				sum[step] += takes / ranks
				step++
			}
		}
		ratio := 0.0
		for step := range steps {
			ratio += slowest[step] / sum[step] / steps
		}
		fmt.Printf("the slowest rank takes %.2f times the mean\n", ratio)
	}
	// Output:
	// the slowest rank takes 1.89 times the mean
	// the slowest rank takes 1.21 times the mean
}

// If OnError drops all samples of a batch, the batch of this rank fails, and a
// loop that left the step out would let the other ranks wait for ever. So the
// rank takes part in the step, with weight zero. Here the samples are losses,
// and an all-reduce adds up their sums and weights.
func Example_badSamplesOnRanks() {
	data := dataloader.Func(8, func(ctx context.Context, i int) (float64, error) {
		if i == 4 || i == 6 { // the second batch of rank 0
			return 0, io.ErrUnexpectedEOF
		}
		return float64(i), nil
	})
	drop := func(bad *dataloader.SampleError) error { return nil } // count it, and have a budget
	var sums, weights [2]float64                                   // of each step
	for rank := range 2 {
		loader, err := dataloader.New(data, dataloader.List[float64], dataloader.Options{
			BatchSize: 2, Rank: dataloader.Rank{Index: rank, Count: 2}, OnError: drop,
		})
		if err != nil {
			log.Fatal(err)
		}
		step := 0
		for batch, err := range loader.Epoch(context.Background(), 0) {
			var bad *dataloader.SampleError
			if err != nil && !errors.As(err, &bad) {
				log.Fatal(err)
			}
			for _, loss := range batch { // the zero batch has none
				sums[step] += loss
			}
			weights[step] += float64(len(batch))
			fmt.Println("rank", rank, "step", step, batch)
			step++
		}
	}
	for step, sum := range sums {
		fmt.Println("step", step, "mean", sum/weights[step], "of", weights[step])
	}
	// Output:
	// rank 0 step 0 [0 2]
	// rank 0 step 1 []
	// rank 1 step 0 [1 3]
	// rank 1 step 1 [5 7]
	// step 0 mean 1.5 of 4
	// step 1 mean 6 of 2
}

// Ranks that train together must take the same number of steps, or some of them
// wait for the others for ever. Under PadTail and DropTail Shard gives all
// ranks the same number of items, however many the source has. UnevenTail
// yields each item once: evaluate with it. Put Shard after stages that drop or
// reorder items, and before Batch.
func Example_shardedStream() {
	const ranks = 3
	// Ten items, but nobody knows before.
	even := dataloader.Indices(dataloader.Sequential(20)).Filter(func(i int) bool {
		return i%2 == 0
	})
	names := map[dataloader.Tail]string{dataloader.PadTail: "pad", dataloader.DropTail: "drop",
		dataloader.UnevenTail: "uneven"}
	for _, tail := range []dataloader.Tail{dataloader.PadTail, dataloader.DropTail,
		dataloader.UnevenTail} {
		for rank := range ranks {
			part := even.Shard(dataloader.Rank{Index: rank, Count: ranks}, tail)
			var steps [][]int
			for batch, err := range dataloader.Batch(part, 2,
				dataloader.List[int]).Epoch(context.Background(), 0) {
				if err != nil {
					log.Fatal(err)
				}
				steps = append(steps, batch)
			}
			fmt.Println(names[tail], "rank", rank, steps)
		}
	}
	// Output:
	// pad rank 0 [[0 6] [12 18]]
	// pad rank 1 [[2 8] [14 0]]
	// pad rank 2 [[4 10] [16 2]]
	// drop rank 0 [[0 6] [12]]
	// drop rank 1 [[2 8] [14]]
	// drop rank 2 [[4 10] [16]]
	// uneven rank 0 [[0 6] [12 18]]
	// uneven rank 1 [[2 8] [14]]
	// uneven rank 2 [[4 10] [16]]
}

// Bad items, full batches and several ranks: if the ranks do not take the same
// number of steps, the last ones wait for ever. Here each rank decodes only its
// own records, and drops those that it cannot decode. From a stream without an
// end it takes as many full batches as the others. That is an epoch.
func Example_equalSteps() {
	texts := []string{"0", "1", "2", "three", "4", "5", "6", "7", "8", "nine"}
	records := dataloader.Indices(dataloader.Random(len(texts), 1)) // or Tar
	decode := func(_ context.Context, i int) (int, error) { return strconv.Atoi(texts[i]) }
	drop := func(bad *dataloader.SampleError) error { return nil } // count it, and have a budget
	const ranks, steps = 3, 2
	for rank := range ranks {
		own := records.Cycle().Shard(dataloader.Rank{Index: rank, Count: ranks},
			dataloader.UnevenTail)
		batches := dataloader.Batch(dataloader.Map(own, 2, decode).OnError(drop), 2,
			dataloader.List[int]).Take(steps)
		for batch, err := range batches.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("rank", rank, batch)
		}
	}
	// Output:
	// rank 0 [2 7]
	// rank 0 [4 7]
	// rank 1 [0 1]
	// rank 1 [6 6]
	// rank 2 [5 8]
	// rank 2 [5 0]
}
