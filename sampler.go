package dataloader

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"math/bits"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// In which order do samples come, and which rank loads them? The first half of
// this file answers with functions of the epoch: samplers for single samples,
// batch samplers for whole batches, and the deal that gives each rank its part.
// The second half answers for streams, which are shuffled by delays, mixed, and
// dealt out item by item.

// A Sampler is an order of the samples for each epoch: Order(epoch)(pos) is the
// index of the sample at position pos, 0 <= pos < Len(). Order and the
// functions that it returns are pure, and safe for concurrent use. Nothing is
// carried from epoch to epoch: no generator, and no set_epoch to forget. So a
// loader can begin at any position.
//
// If a Sampler has a String method, its result describes the order in cursors:
// samplers with equal descriptions are taken for the same. Without a String
// method the description is the type and the length. PyTorch: Sampler.
//
// Sequential, Random, TorchRandom and RandomWithReplacement have indices below
// n, and New refuses a data set of fewer than n samples.
type Sampler interface {
	Len() int
	Order(epoch int) func(pos int) int
}

// A BatchSampler is an order of whole batches: Batches(epoch)(k) holds the
// indices of batch k, 0 <= k < Len(). Len is the same in every epoch. Otherwise
// Sampler's rules apply. The loader does not change the slices. PyTorch:
// batch_sampler.
type BatchSampler interface {
	Len() int
	Batches(epoch int) func(k int) []int
}

// A sampler is a Sampler made of its parts.
type sampler struct {
	n     int
	name  string
	order func(epoch int) func(pos int) int
	need  need
}

// Len returns the number of positions in an epoch.
func (s sampler) Len() int { return s.n }

// Order returns the order of an epoch.
func (s sampler) Order(epoch int) func(pos int) int { return s.order(epoch) }

// String describes the sampler, as in "Random(60000, seed 9)".
func (s sampler) String() string { return s.name }

// A need is the number of samples that an order needs in the data set: at least
// so many, or exactly so many.
type need struct {
	samples int
	exactly bool
}

// needOf returns what an order needs, or the zero need if the order is not one
// of this package.
func needOf(order any) need {
	s, _ := order.(sampler)
	b, _ := order.(batchSampler)
	return cmp.Or(s.need, b.need)
}

// Sequential is the order 0, 1, …, n-1. It panics if n is negative. PyTorch:
// SequentialSampler.
func Sequential(n int) Sampler {
	panicIf(n < 0, "Sequential: n is %d, must not be negative", n)
	return sampler{n, fmt.Sprintf("Sequential(%d)", n), func(int) func(int) int {
		return func(pos int) int { return pos }
	}, need{samples: n}}
}

// Random is a new permutation of 0 … n-1 in every epoch. An epoch needs at most
// 8 KiB of memory, whatever n is, and any position of any epoch takes the same
// time. Up to n = 4,096 the permutation of an epoch is a table; for larger n
// each index is computed when it is asked for. Random panics if n is negative.
//
// At some lengths above 4,096 nearly all permutations are even, or nearly all
// are odd: at 60,000, 399 of 400. Training is not affected.
//
// PyTorch: RandomSampler, with other numbers; TorchRandom has torch's. Random
// over a Subset is PyTorch's SubsetRandomSampler.
func Random(n int, seed uint64) Sampler {
	panicIf(n < 0, "Random: n is %d, must not be negative", n)
	return sampler{n, fmt.Sprintf("Random(%d, seed %d)", n, seed), func(epoch int) func(int) int {
		return permutation(n, hash(seed, uint64(epoch), uint64(n)))
	}, need{samples: n}}
}

// maxTable is the greatest length of a permutation that is kept as a table, of
// 8 KiB. On a small domain a Feistel network mixes badly: at n = 10 no number
// of rounds makes all pairs equally likely.
const maxTable = 4096

// permutation returns a permutation of 0 … n-1 as a function.
func permutation(n int, seed uint64) func(pos int) int {
	if n > maxTable {
		return newFeistel(uint64(n), seed).at
	}
	// The inside-out version of the Fisher–Yates shuffle: put i at a random
	// place j <= i, and move what was at j to i.
	table := make([]uint16, n)
	for i := range n {
		j := below(uint64(i)+1, seed, uint64(i))
		table[i] = table[j]
		table[j] = uint16(i)
	}
	return func(pos int) int { return int(table[pos]) }
}

// A feistel is a permutation of 0 … n-1 that is computed position by position.
// It is a Feistel network of four rounds: a number is split into two halves,
// and a round changes the left half by a hash of the right, and then the right
// half by a hash of the left. (In the literature a round changes one half, and
// this network has eight.) This is one round with n = 10, where k = 2 and a =
// 3, and the number 7 = 1 × 2^k + 3 is split into 1 and 3:
//
//	left  1 ──────(+2)──────┬──────── 0    left  = (left + hash(right)) mod a
//	                ^       v
//	right 3 ────────┴────(xor 2)───── 1    right = right xor hash(left)
//
//	hash(3) = 2, (1 + 2) mod 3 = 0
//	hash(0) = 2, 3 xor 2 = 1
//
// The right half has k bits, the left half counts from 0 to a-1 with a =
// ⌈n/2^k⌉. So the network permutes a domain of a × 2^k numbers, which is hardly
// larger than n. A result outside 0 … n-1 goes in again ("cycle walking": Black
// and Rogaway, Ciphers with Arbitrary Finite Domains, 2002); see at. That
// happens to at most about one result in √(n/2); of 10^12 samples it happens to
// one in 1.4 million.
//
// In newFeistel(10, 0) the domain has 12 numbers. Four rounds turn 7 into 11,
// which is outside, and four more turn 11 into 5. So position 7 has the value
// 5, and the permutation's cycle skips 11. (So short a permutation is kept as a
// table instead; small numbers can be checked by hand.)
//
//	 7 = 1,3 → 0,1 → 2,3 → 0,3 → 2,3 = 11      the network's cycle  7 → 11 → 5 → 1 → 7
//	11 = 2,3 → 1,1 → 0,3 → 1,0 → 1,1 = 5       the permutation's    7 ─────→ 5 → 1 → 7
//
// Rejected: a balanced network, whose domain is a power of 4 and up to four
// times n, so that a position may take four tries; a linear congruence, or
// fewer rounds, which are faster but leave neighbours visibly together in the
// batches.
type feistel struct {
	n, a uint64
	k    uint
	keys [8]uint64 // two for each round
}

// newFeistel returns the permutation of 0 … n-1 with the given seed, for n > 0.
func newFeistel(n, seed uint64) *feistel {
	k := uint(bits.Len64(n-1)) / 2
	f := &feistel{n: n, k: k, a: (n-1)>>k + 1}
	for j := range f.keys {
		f.keys[j] = counter(seed, uint64(j))
	}
	return f
}

// at returns the value at position pos. Subtraction inverts the addition in a
// round, and xor inverts itself, so the network is one-to-one on its domain.
// Repeated, a one-to-one function walks in a cycle; the start is on the cycle
// and below n, so the walk ends. The walk can be done backwards, so two
// positions never have the same value.
func (f *feistel) at(pos int) int {
	x, mask := uint64(pos), uint64(1)<<f.k-1 // mask has the k bits of the right half
	for {
		left, right := x>>f.k, x&mask
		for j := 0; j < len(f.keys); j += 2 {
			add, _ := bits.Mul64(scramble(right^f.keys[j]), f.a) // uniform in 0 … a-1
			if left += add; left >= f.a {
				left -= f.a
			}
			right ^= (scramble(left^f.keys[j+1]) >> 32) & mask
		}
		x = left<<f.k | right
		if x < f.n {
			return int(x)
		}
	}
}

// scramble is the hash in a round. Two multiplications and a shift let every
// bit of x reach the high bits, which are the ones used. One multiplication is
// too weak: at n up to 4000, pairs of positions then stay correlated.
func scramble(x uint64) uint64 {
	x *= 0x9FB21C651E98DF25
	x ^= x >> 32
	return x * 0xD6E8FEB86659FD93
}

// counter returns output i of the generator SplitMix64 (Steele, Lea and Flood,
// Fast Splittable Pseudorandom Number Generators, 2014): random numbers by
// position, without a generator to carry.
func counter(seed, i uint64) uint64 { return mix(seed + (i+1)*golden) }

// golden is 2^64 divided by the golden ratio, the step of SplitMix64.
const golden = 0x9E3779B97F4A7C15

// mix is the finalizer of SplitMix64: it is one-to-one, and every bit of its
// result depends on every bit of x.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// hash makes one seed of several numbers. The numbers must not simply be added:
// with seed+epoch, epoch 1 of seed 7 would be epoch 0 of seed 8.
func hash(parts ...uint64) uint64 {
	h := uint64(0)
	for _, part := range parts {
		h = mix((h ^ part) + golden)
	}
	return h
}

// below returns random number i in 0 … n-1. Its deviation from uniformity is at
// most n/2^64 (Lemire, Fast Random Integer Generation in an Interval, 2019).
func below(n, seed, i uint64) int {
	high, _ := bits.Mul64(counter(seed, i), n)
	return int(high)
}

// unit turns 64 random bits into a number in [0, 1), a multiple of 2^-53.
func unit(x uint64) float64 { return float64(x>>11) * 0x1p-53 }

// RandomWithReplacement draws the index at each of the count positions of an
// epoch from 0 … n-1, independently of the others. It panics if n is negative,
// or if count is not positive; count may be 0 if n is 0. Samplers that are
// combined need different seeds: with one seed and n, RandomWithReplacement and
// Weighted draw with the same random numbers. PyTorch: RandomSampler with
// replacement=True and num_samples=count.
func RandomWithReplacement(n, count int, seed uint64) Sampler {
	panicIf(n < 0, "RandomWithReplacement: n is %d, must not be negative", n)
	checkCount("RandomWithReplacement", n, count)
	name := fmt.Sprintf("RandomWithReplacement(%d of %d, seed %d)", count, n, seed)
	return sampler{count, name, func(epoch int) func(int) int {
		h := hash(seed, uint64(epoch), uint64(n))
		return func(pos int) int { return below(uint64(n), h, uint64(pos)) }
	}, need{samples: n}}
}

// checkCount panics unless an epoch of count positions can be drawn from n
// samples.
func checkCount(constructor string, n, count int) {
	panicIf(count < 0 || count == 0 && n > 0,
		"%s: count is %d, must be positive", constructor, count)
	panicIf(count > 0 && n == 0,
		"%s: count is %d, must be 0, as there are no samples", constructor, count)
}

// Weighted draws a sample for each position of an epoch, with a chance
// proportional to its weight: weights[i] for sample i. A sample of weight 0 is
// never drawn. Weights must be finite and not negative. At least one must be
// positive, and without replacement at least count of them. count must be
// positive. The weights are copied. New refuses a data set with another number
// of samples.
//
// With replacement a position is computed when it is asked for, by a search in
// the cumulative weights. On average the search looks at one of them, however
// many there are. The sampler takes 16 bytes a weight, and an epoch nothing.
//
// Without replacement the order of an epoch is computed when the epoch starts:
// each sample gets an exponential waiting time with its weight as the rate, and
// the samples with the count shortest times are taken, the shortest first. The
// first to arrive is sample i with a chance proportional to its weight, and the
// rest race on as if it had never taken part (Efraimidis and Spirakis, Weighted
// Random Sampling with a Reservoir, 2006). The sampler takes 8 bytes a weight,
// and an epoch 8 bytes a draw. While an epoch is computed, it takes 8 bytes
// more a weight, or 16 a draw if that is less.
//
// PyTorch: WeightedRandomSampler, which allows at most 2^24 samples and draws
// samples of weight 0 when it must.
func Weighted(weights []float64, count int, replace bool, seed uint64) (Sampler, error) {
	n := len(weights)
	positive := 0 // the number of positive weights
	largest := 0.0
	digest := uint64(0) // of the weights, for the description
	for i, w := range weights {
		if w < 0 || math.IsNaN(w) || math.IsInf(w, 0) {
			return nil, fmt.Errorf("dataloader: Weighted: weights[%d] is %v, "+
				"must be finite and not negative", i, w)
		}
		digest = hash(digest, math.Float64bits(w))
		largest = max(largest, w)
		if w > 0 {
			positive++
		}
	}
	err := cmp.Or(
		errorIf(count <= 0, "count is %d, must be positive", count),
		errorIf(positive == 0, "none of the %d weights is positive", n),
		errorIf(!replace && count > positive,
			"count is %d without replacement, must be at most %d, the number of positive weights",
			count, positive))
	if err != nil {
		return nil, fmt.Errorf("dataloader: Weighted: %w", err)
	}
	name := fmt.Sprintf("Weighted(%d of %d, weights #%x, replace %t, seed %d)",
		count, n, digest, replace, seed)
	var draw func(seed uint64) func(pos int) int
	if replace {
		draw = drawCumulative(weights, largest)
	} else {
		draw = drawShortest(slices.Clone(weights), largest, count)
		name += ", version 2"
	}
	return sampler{count, name, func(epoch int) func(int) int {
		return draw(hash(seed, uint64(epoch), uint64(n)))
	}, need{n, true}}, nil
}

// drawCumulative draws with replacement: sample j is drawn if a random number
// in [0, sum of all weights) falls into the interval of length weights[j] that
// ends at sums[j].
func drawCumulative(weights []float64, largest float64) func(seed uint64) func(pos int) int {
	sums := make([]float64, len(weights))
	sum := 0.0
	for j, w := range weights {
		sum += w / largest // so that sums are finite
		sums[j] = sum
	}
	find := newGuide(sums)
	return func(seed uint64) func(int) int {
		return func(pos int) int { return find(unit(counter(seed, uint64(pos))) * sum) }
	}
}

// newGuide returns a function that finds the first of the ascending sums that
// is above x, for 0 <= x < the last sum. The interval from 0 to the last sum is
// divided into as many equal parts as there are sums, and a guide table says
// which sums are in a part (Chen and Asau, On Generating Random Variates from
// an Empirical Distribution, 1974):
//
//	guide[k] = the number of sums in the parts before part k
//
// A sum in an earlier part than x is below x, and a sum in a later part is
// above x. So the binary search is left with the sums in the part of x,
// guide[k] <= j < guide[k+1]. On average there is one sum. A part with many
// sums costs their logarithm, where a search one by one took 299 steps (of 300
// weights).
//
// A binary search in all sums has the same result, to the bit. The product in
// part is rounded, so a number near the border of two parts may be in the wrong
// one. But rounding never reverses an order: if part(a) < part(b), then a < b,
// which is enough. The last sum may be rounded into part n, so guide has n + 2
// entries.
//
// Rejected: an alias table (Walker, 1974), which draws in half the time. But
// from the same random numbers it draws other samples, so saved cursors would
// not fit, and it is twice as long.
func newGuide(sums []float64) func(x float64) int {
	scale := float64(len(sums)) / sums[len(sums)-1]
	part := func(x float64) int { return int(x * scale) }
	guide := make([]int, len(sums)+2)
	for _, s := range sums {
		guide[part(s)+1]++
	}
	for k := range guide[1:] {
		guide[k+1] += guide[k]
	}
	return func(x float64) int {
		k := part(x)
		first, end := guide[k], guide[k+1]
		return first + sort.Search(end-first, func(j int) bool { return sums[first+j] > x })
	}
}

// drawShortest draws count samples without replacement, in the order of their
// waiting times. The bits of a number that is not negative, read as an integer,
// have the order of the numbers. In a sample's key the lowest bits of its
// waiting time, as many as an index needs, give way to its index. So the keys
// are sorted as integers, which takes less than half the time of a sort with a
// comparing function.
//
// If the other bits of two keys are equal, the smaller index comes first. Of
// 2^23 samples of equal weight, 0.3 % share these bits with another, of 2^20
// samples 0.005 %. If a weight is so much smaller than the largest that its
// time is infinite, its sample comes last, by index.
//
// Whenever 2 × count + 1,000 keys have been collected, only the smallest count
// of them are kept, and no later key above these is collected. So memory grows
// with count, and a few draws from many samples take hardly more time than the
// random numbers.
func drawShortest(
	weights []float64, largest float64, count int,
) func(seed uint64) func(pos int) int {
	mask := uint64(1)<<bits.Len(uint(len(weights)-1)) - 1 // has the bits of an index
	return func(seed uint64) func(int) int {
		keys := make([]uint64, 0, min(len(weights), 2*count+1000))
		limit := uint64(math.MaxUint64)
		for j, w := range weights {
			if len(keys) == cap(keys) {
				slices.Sort(keys)
				keys, limit = keys[:count], keys[count-1]
			}
			log := math.Log(1 - unit(counter(seed, uint64(j))))
			time := math.Abs(log) / (w / largest) // Abs, because -Log(1) is -0
			key := math.Float64bits(time)&^mask | uint64(j)
			if w > 0 && key < limit {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
		order := slices.Clone(keys[:count])
		return func(pos int) int { return int(order[pos] & mask) }
	}
}

// TorchRandom is torch's own order, element for element: in epoch e it is
// randperm(n) of a generator seeded with seed+e, as DistributedSampler has it.
// With Options.Rank and Tail each rank gets what DistributedSampler would give
// it, so that a Go job and a Python job can share an epoch.
//
// Torch's other samplers (RandomSampler, SubsetRandomSampler,
// WeightedRandomSampler) carry a generator from epoch to epoch. Their orders
// depend on everything drawn from it before, even on how the last loop ended.
// An order that depends on the epoch alone cannot have that history; only epoch
// 0 of RandomSampler with a fresh generator equals TorchRandom's.
// DataLoader(data, shuffle=True, generator=g) has another order even then,
// because torch draws a seed for its workers from g first; DataLoader(data,
// sampler=RandomSampler(data, generator=g)) has TorchRandom's.
//
// The table of an epoch takes 4 bytes a sample, and a loader keeps the tables
// of two epochs. Torch's seeds have 32 bits, and epoch e of seed s is epoch 0
// of seed s+e. Use Random unless you need torch's numbers. TorchRandom panics
// if n is negative or not below 2^32/20, because torch uses another method
// there.
func TorchRandom(n int, seed uint64) Sampler {
	panicIf(n < 0 || n > maxTorch, "TorchRandom: n is %d, must be 0 to %d", n, maxTorch)
	name := fmt.Sprintf("TorchRandom(%d, seed %d)", n, seed)
	return sampler{n, name, func(epoch int) func(int) int {
		order := make([]uint32, n)
		for i := range order {
			order[i] = uint32(i)
		}
		next := newTwister(uint32(seed + uint64(epoch)))
		for i := range n - 1 {
			j := i + int(next()%uint32(n-i))
			order[i], order[j] = order[j], order[i]
		}
		return func(pos int) int { return int(order[pos]) }
	}, need{samples: n}}
}

// maxTorch is the largest n for which torch draws its permutations as
// TorchRandom does.
const maxTorch = (1<<32)/20 - 1

// newTwister returns the generator MT19937 (Matsumoto and Nishimura, Mersenne
// Twister, 1998) with the given seed: a function that returns the next 32
// random bits.
func newTwister(seed uint32) func() uint32 {
	var state [624]uint32
	for i := range state {
		state[i] = seed
		seed = 1812433253*(seed^seed>>30) + uint32(i) + 1
	}
	used := len(state)
	return func() uint32 {
		if used == len(state) {
			for i := range state {
				y := state[i]&(1<<31) | state[(i+1)%624]&(1<<31-1)
				state[i] = state[(i+397)%624] ^ y>>1 ^ -(y&1)&0x9908B0DF
			}
			used = 0
		}
		y := state[used]
		used++
		y ^= y >> 11
		y ^= y << 7 & 0x9D2C5680
		y ^= y << 15 & 0xEFC60000
		return y ^ y>>18
	}
}

// OrderFunc is an order that the caller computes: order(epoch) returns the n
// indices of an epoch, the same ones whenever it is asked for that epoch. The
// indices are copied. If their number is not n, that is the last error of the
// loop. Inside Resize each batch fails instead. order must not read from the
// loader or the stream that asks it, which would wait for itself. A cursor
// cannot distinguish two OrderFuncs of the same length. OrderFunc panics if n
// is negative or order is nil.
func OrderFunc(n int, order func(epoch int) []int) Sampler {
	panicIf(n < 0, "OrderFunc: n is %d, must not be negative", n)
	panicIf(order == nil, "OrderFunc: order is nil")
	name := fmt.Sprintf("OrderFunc(%d)", n)
	return sampler{n, name, func(epoch int) func(int) int {
		indices := slices.Clone(order(epoch))
		if len(indices) != n {
			// Order has no error result; the loader turns the panic into an
			// error.
			panic(fmt.Errorf("OrderFunc: the order of epoch %d has %d positions, must have %d",
				epoch, len(indices), n))
		}
		return func(pos int) int { return indices[pos] }
	}, need{}}
}

// Resize makes epochs of count positions from a sampler of another length, by
// walking on through the sampler's epochs: with count = 2·s.Len(), epoch 3
// covers epochs 6 and 7 of s. It panics if s is nil, or if count is not
// positive; count may be 0 if s is empty. PyTorch: num_samples.
func Resize(s Sampler, count int) Sampler {
	panicIf(s == nil, "Resize: the sampler is nil")
	n := s.Len()
	checkCount("Resize", n, count)
	orderOf := keepTwo(s.Order)
	name := fmt.Sprintf("Resize(%s, %d)", describe(s), count)
	return sampler{count, name, func(epoch int) func(int) int {
		if count > 0 && epoch >= math.MaxInt/count { // Order has no error result; see OrderFunc
			panic(fmt.Errorf("Resize: %w: epoch %d of %d positions each is too far",
				ErrCursor, epoch, count))
		}
		return func(pos int) int {
			pos += epoch * count // in the endless walk
			return orderOf(pos / n)(pos % n)
		}
	}, needOf(s)}
}

// describe says which sampler s is, for cursors and errors. The description is
// valid UTF-8, as it goes through JSON.
func describe(s interface{ Len() int }) string {
	if s, ok := s.(fmt.Stringer); ok {
		return strings.ToValidUTF8(s.String(), "?")
	}
	return fmt.Sprintf("%T(%d)", s, s.Len())
}

// keepTwo returns orderOf with a memory for two epochs, the last even and the
// last odd one, because making an order may take time proportional to its
// length. Two are kept because an epoch of Resize may span two epochs of its
// sampler, and then asks for both in turn. The function is safe for concurrent
// use: one caller makes an order, and whoever else needs it waits. It panics if
// the order of an epoch is nil.
func keepTwo[F func(pos int) int | func(k int) []int](orderOf func(epoch int) F) func(epoch int) F {
	type entry struct {
		epoch int
		order F
	}
	var kept [2]atomic.Pointer[entry]
	var making sync.Mutex
	return func(epoch int) F {
		last := &kept[epoch&1]
		e := last.Load()
		if e != nil && e.epoch == epoch {
			return e.order
		}
		making.Lock()
		defer making.Unlock()
		e = last.Load() // another caller may have made it meanwhile
		if e == nil || e.epoch != epoch {
			e = &entry{epoch, orderOf(epoch)}
			if e.order == nil {
				panic("the order is nil")
			}
			last.Store(e)
		}
		return e.order
	}
}

// Batches divides the order of s into batches of size samples. The last batch
// of an epoch may be shorter; with dropLast it is left out. A loader does the
// same with Options.Sampler and BatchSize; Batches is for batch samplers of
// your own that build on it. It panics if s is nil or size is not positive.
// PyTorch: BatchSampler.
func Batches(s Sampler, size int, dropLast bool) BatchSampler {
	panicIf(s == nil, "Batches: the sampler is nil")
	panicIf(size <= 0, "Batches: size is %d, must be positive", size)
	n := s.Len()
	d := deal{n: n, size: min(size, n+1), rank: Rank{0, 1}, dropLast: dropLast}.start(0)
	name := fmt.Sprintf("Batches(%s, %d", describe(s), size)
	if dropLast {
		name += ", dropLast"
	}
	return batchSampler{d.steps(), name + ")", func(epoch int) func(int) []int {
		order := s.Order(epoch)
		return func(k int) []int {
			batch := d.positions(nil, k)
			for j, pos := range batch {
				batch[j] = order(pos)
			}
			return batch
		}
	}, needOf(s)}
}

// A batchSampler is a BatchSampler made of its parts.
type batchSampler struct {
	n       int
	name    string
	batches func(epoch int) func(k int) []int
	need    need
}

// Len returns the number of batches in an epoch.
func (b batchSampler) Len() int { return b.n }

// Batches returns the batches of an epoch.
func (b batchSampler) Batches(epoch int) func(k int) []int { return b.batches(epoch) }

// String describes the batch sampler, as in "Batches(Random(60000, seed 9),
// 64)".
func (b batchSampler) String() string { return b.name }

// ceil returns a/b, rounded up, for a >= 0 and b > 0. (a + b - 1 could
// overflow.)
func ceil(a, b int) int {
	if a%b == 0 {
		return a / b
	}
	return a/b + 1
}

// Buckets makes batches of samples of similar length, so that batches need
// little padding. lengths[i] is the length of sample i. A batch's longest
// length times its number of samples is at most budget. The lengths in a bucket
// exceed its shortest by at most an eighth. In every epoch each bucket is
// shuffled and divided into batches anew, and the batches of all buckets come
// in a new order.
//
// A budget that is not positive, and a length that is negative or above the
// budget, are errors. New refuses a data set with another number of samples.
func Buckets(lengths []int, budget int, seed uint64) (BatchSampler, error) {
	if budget <= 0 {
		return nil, fmt.Errorf("dataloader: Buckets: budget is %d, must be positive", budget)
	}
	items := make([]int, len(lengths)) // the samples, sorted by length
	digest := uint64(0)                // of the lengths, for the description
	for i, length := range lengths {
		if length < 0 || length > budget {
			return nil, fmt.Errorf("dataloader: Buckets: lengths[%d] is %d, must be 0 to %d, the budget",
				i, length, budget)
		}
		items[i] = i
		digest = hash(digest, uint64(length))
	}
	slices.SortFunc(items, func(i, j int) int { return cmp.Or(lengths[i]-lengths[j], i-j) })

	type part struct{ bucket, begin, end int } // of a bucket, in its order
	var buckets [][]int
	var parts []part // one for each batch
	for len(items) > 0 {
		shortest := lengths[items[0]]
		n := 0 // the number of samples in the bucket
		for n < len(items) && lengths[items[n]]-shortest <= shortest/8 {
			n++
		}
		perBatch := budget / max(1, lengths[items[n-1]])
		count := ceil(n, perBatch)
		for k := range count { // divided evenly, so that no batch is much smaller than the others
			parts = append(parts, part{len(buckets), k * n / count, (k + 1) * n / count})
		}
		buckets = append(buckets, items[:n])
		items = items[n:]
	}
	name := fmt.Sprintf("Buckets(%d, lengths #%x, budget %d, seed %d)",
		len(lengths), digest, budget, seed)
	return batchSampler{len(parts), name, func(epoch int) func(int) []int {
		batch := Random(len(parts), seed).Order(epoch)
		orders := make([]func(int) int, len(buckets))
		for j, items := range buckets {
			orders[j] = Random(len(items), hash(seed, uint64(j))).Order(epoch)
		}
		return func(k int) []int {
			p := parts[batch(k)]
			indices := make([]int, 0, p.end-p.begin)
			for pos := p.begin; pos < p.end; pos++ {
				indices = append(indices, buckets[p.bucket][orders[p.bucket](pos)])
			}
			return indices
		}
	}, need{len(lengths), true}}, nil
}

// An order is used in two steps: epoch → pos → indices. An indicesAt appends to
// dst the indices at position pos of one epoch. A position of a Sampler is one
// sample, a position of a BatchSampler a whole batch.
type indicesAt func(dst []int, pos int) []int

// indicesOfSamples returns the function that makes the indicesAt of an epoch of
// a Sampler.
func indicesOfSamples(orderOf func(epoch int) func(pos int) int) func(epoch int) indicesAt {
	return func(epoch int) indicesAt {
		order := orderOf(epoch)
		return func(dst []int, pos int) []int { return append(dst, order(pos)) }
	}
}

// indicesOfBatches returns the function that makes the indicesAt of an epoch of
// a BatchSampler.
func indicesOfBatches(batchesOf func(epoch int) func(k int) []int) func(epoch int) indicesAt {
	return func(epoch int) indicesAt {
		batch := batchesOf(epoch)
		return func(dst []int, pos int) []int { return append(dst, batch(pos)...) }
	}
}

// A Rank says which part is read: part Index of Count. Usually each process of
// a training has a part, and Index is its rank; but one process may read
// several parts, and processes that share a replica of the model (tensor or
// pipeline parallel) read the same one; see RankFromEnv. The zero value means
// the whole. PyTorch: rank and num_replicas.
type Rank struct{ Index, Count int }

// withCount returns the rank with its Count filled in, or says what is wrong
// with it.
func (r Rank) withCount() (Rank, error) {
	count := min(max(r.Count, 1), maxRanks)
	return Rank{r.Index, count}, cmp.Or(
		errorIf(r.Count == 0 && r.Index > 0,
			"Rank is {Index: %d, Count: 0}; set Count, the number of ranks", r.Index),
		errorIf(r.Count < 0 || r.Count > maxRanks || r.Index < 0 || r.Index >= count,
			"Rank is {Index: %d, Count: %d}; Count must be 0 to %d, and Index 0 to %d",
			r.Index, r.Count, maxRanks, count-1))
}

// maxRanks bounds Rank.Count, so that no position overflows.
const maxRanks = 1 << 20

// nth returns the position of the rank's item i in a sequence that is dealt
// out: Index + i×Count.
func (r Rank) nth(i int) int { return r.Index + i*r.Count }

// dealt returns how many of n items are dealt to the rank: the number of i with
// nth(i) < n.
func (r Rank) dealt(n int) int { return ceil(max(0, n-r.Index), r.Count) }

// RankFromEnv returns the rank of this process, as its launcher describes it in
// the environment:
//
//	torchrun                    RANK, WORLD_SIZE
//	mpirun of Open MPI          OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE
//	Flux                        FLUX_TASK_RANK, FLUX_JOB_SIZE
//	mpirun of MPICH, Intel MPI  PMI_RANK, PMI_SIZE
//	srun                        SLURM_PROCID, SLURM_STEP_NUM_TASKS
//	Kubernetes indexed Job      JOB_COMPLETION_INDEX, and WORLD_SIZE, which you
//	                            set in the manifest
//
// The first row whose rank variable is set decides. The launchers in the rows
// before srun also run inside Slurm jobs, and pass Slurm's variables on. If no
// rank variable is set, the result is the zero Rank, which means a single
// process; its Count is 0.
//
// RankFromEnv returns an error where a process would train on the wrong
// samples:
//
//   - a number is missing or makes no sense
//   - a WORLD_SIZE or PMI_SIZE, perhaps left over in the shell, is below the
//     number of processes that another launcher of the table has started
//   - another variable is a rank that does not fit: above 0 if no row decides,
//     otherwise not below the number of processes. Variables are ranks if their
//     names end in RANK (LOCAL_RANK, NODE_RANK, PMIX_RANK) or are PMI_ID,
//     PALS_RANKID, MPI_RANKID, MPI_LOCALRANKID, ALPS_APP_PE, LSF_PM_TASKID,
//     VC_TASK_INDEX, LWS_WORKER_INDEX, AWS_BATCH_JOB_NODE_INDEX, TPU_WORKER_ID,
//     CLOUD_TPU_TASK_ID, JAX_PROCESS_ID, DMLC_WORKER_ID or PADDLE_TRAINER_ID
//   - an sbatch script for several tasks starts the process without srun, and
//     Slurm calls the only process rank 0 of many
//
// The index in a manifest is not always the rank. In a JobSet of several Jobs,
// and in a PyTorchJob with nprocPerNode but without torchrun, several processes
// have the same index: set RANK and WORLD_SIZE yourself.
//
// The result r counts processes. If m consecutive processes share a replica of
// the model, they must load the same batches, those of Rank{r.Index / m,
// r.Count / m}, where m must divide Count, and Count must not be 0.
func RankFromEnv() (Rank, error) {
	const step = "SLURM_STEP_NUM_TASKS"
	launchers := []struct {
		rank, count string
		least       string // lower bounds of count
		hint        string // what else to say if they make no sense
	}{
		{"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE FLUX_JOB_SIZE PMI_SIZE " + step, ""},
		// No bound: the step may be one of daemons, which may outnumber the
		// ranks.
		{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "", ""},
		{"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "", ""},
		{"PMI_RANK", "PMI_SIZE", step, ""},
		{"SLURM_PROCID", step, "",
			"; start it with srun; in a container, pass SLURM_STEP_NUM_TASKS on, too"},
		{"JOB_COMPLETION_INDEX", "WORLD_SIZE", "", ""},
	}
	// Whether this is the script of sbatch, for one task, and not a step of
	// srun.
	script := os.Getenv("SLURM_PROCID") == "0" && os.Getenv(step) == "" &&
		cmp.Or(os.Getenv("SLURM_NTASKS"), "1") == "1"
	for _, l := range launchers {
		if _, ok := os.LookupEnv(l.rank); !ok || script && l.rank == "SLURM_PROCID" {
			continue
		}
		index, err1 := strconv.Atoi(os.Getenv(l.rank))
		count, err2 := strconv.Atoi(os.Getenv(l.count))
		if err1 != nil || err2 != nil || index < 0 || index >= count {
			return Rank{}, fmt.Errorf("dataloader: RankFromEnv: %s is %q and %s is %q; "+
				"the second must be the number of processes, the first 0 to one less%s",
				l.rank, os.Getenv(l.rank), l.count, os.Getenv(l.count), l.hint)
		}
		least := strings.Fields(l.least)
		for _, name := range slices.Concat(least, otherRanks()) {
			n, _ := strconv.Atoi(os.Getenv(name))
			// A bound may be equal to count, a rank may not.
			if n > count || n == count && !slices.Contains(least, name) {
				return Rank{}, fmt.Errorf("dataloader: RankFromEnv: %s is %d, and %s is %d; "+
					"unset %s and %[1]s if they are left over, "+
					"or %[3]s if they are right, as in separate trainings",
					l.count, count, name, n, l.rank)
			}
		}
		return Rank{index, count}, nil
	}
	if size, ok := os.LookupEnv("WORLD_SIZE"); ok && size != "1" {
		return Rank{}, fmt.Errorf("dataloader: RankFromEnv: "+
			"WORLD_SIZE is %q but RANK is not set", size)
	}
	for _, name := range otherRanks() {
		if rank, _ := strconv.Atoi(os.Getenv(name)); rank > 0 {
			return Rank{}, fmt.Errorf("dataloader: RankFromEnv: %s is %d, "+
				"and the number of processes is not known; set RANK and WORLD_SIZE", name, rank)
		}
	}
	return Rank{}, nil
}

// otherRanks returns the names of the variables that are set and may be a rank,
// sorted.
func otherRanks() (names []string) {
	const known = "PMI_ID PALS_RANKID MPI_RANKID MPI_LOCALRANKID ALPS_APP_PE LSF_PM_TASKID " +
		"VC_TASK_INDEX LWS_WORKER_INDEX AWS_BATCH_JOB_NODE_INDEX TPU_WORKER_ID " +
		"CLOUD_TPU_TASK_ID JAX_PROCESS_ID DMLC_WORKER_ID PADDLE_TRAINER_ID"
	for _, setting := range os.Environ() {
		name, _, _ := strings.Cut(setting, "=")
		if strings.HasSuffix(name, "RANK") || slices.Contains(strings.Fields(known), name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// A Tail is a remainder policy: it says what happens when an epoch cannot be
// dealt out evenly. Ten samples on three ranks, in batches of two:
//
//	            rank 0      rank 1      rank 2
//	PadTail     0 3 | 6 9   1 4 | 7 0   2 5 | 8 1
//	DropTail    0 3 | 6     1 4 | 7     2 5 | 8
//	UnevenTail  0 3 | 6 9   1 4 | 7     2 5 | 8
type Tail int

const (
	// PadTail repeats the epoch's first samples until all ranks have the same
	// number. It is the default, and right for training in step. In an
	// evaluation the repeated samples would count twice.
	PadTail Tail = iota
	// DropTail leaves out the last samples, at most Count-1 of them, so that
	// all ranks have the same number.
	DropTail
	// UnevenTail gives the first ranks one sample more. Every sample comes
	// exactly once, as an evaluation needs it. The same number of steps is not
	// always the same place on all ranks then. Stream.Shard says after which
	// stages a cursor belongs to its rank. The start of an epoch fits all
	// ranks, so save one cursor for each rank if the loop goes over several
	// epochs.
	UnevenTail
)

// A deal is a partition of the positions begin … n-1 of an epoch, which are
// dealt out to the ranks, one to each in turn. Rank r of c gets
//
//	begin+r, begin+r+c, begin+r+2c, …
//
// and divides them into batches of size positions. A step is one batch of each
// rank: step k takes size×c positions, from begin+k×size×c on. So if size×c
// stays the same, another number of ranks goes on with the same samples in each
// step. Under a BatchSampler a position is a batch, and size is 1. Ten
// positions, dealt to three ranks in batches of two:
//
//	         rank 0   1   2
//	step 0        0   1   2
//	              3   4   5      the next step begins at position 6, for all ranks
//	step 1        6   7   8
//	              9  10  11      PadTail takes 0 and 1 in place of 10 and 11,
//	                             UnevenTail only 9, DropTail none of this row
//
// These numbers go with a batch. In engine, pass and deal they have these
// names:
//
//	k      a task of an engine; send is the next one to be sent, recv the next
//	       result to be handed over (worker.go)
//	slot   where a task lies: 0 … window (worker.go)
//	step   a batch of a pass, from 0 where the pass began; all ranks take a step
//	       together (dataloader.go)
//	Batch  a batch of this rank in the epoch, from 0: what errors and timings say
//	pos    a position of the epoch's order: a sample, or a batch of a
//	       BatchSampler; what cursors count
//	part   the number of a sample within a position, under a BatchSampler;
//	       otherwise 0
//	index  a sample of the data set
//
// Batch = firstBatch + step, where firstBatch is 0 in a pass from the start of
// an epoch. Task k is step k, unless the pass resumes a loop that was out of
// order: then it leaves out the steps that are done.
type deal struct {
	begin, n int
	size     int  // at most n+1
	rank     Rank // Count is at least 1
	tail     Tail
	dropLast bool

	// A row is one position for each rank. The last row may not be full.
	rows  int
	dealt int // the number of positions that are dealt to this rank
}

// start returns the deal of the positions begin … n-1.
func (d deal) start(begin int) deal {
	left := d.n - begin
	d.begin, d.rows = begin, ceil(left, d.rank.Count)
	switch d.tail {
	case DropTail:
		d.dealt = left / d.rank.Count
	case UnevenTail:
		d.dealt = d.rank.dealt(left)
	default:
		d.dealt = d.rows
	}
	return d
}

// steps returns the number of this rank's batches.
func (d deal) steps() int {
	if d.dropLast {
		return d.dealt / d.size
	}
	return ceil(d.dealt, d.size)
}

// positions appends the positions of this rank's batch at a step. Under PadTail
// positions from n on stand for the first ones: n for position 0, n+1 for
// position 1.
func (d *deal) positions(dst []int, step int) []int {
	for i := step * d.size; i < min((step+1)*d.size, d.dealt); i++ {
		dst = append(dst, d.begin+d.rank.nth(i))
	}
	return dst
}

// after returns the position at which all ranks stand after some steps. It does
// not depend on the rank's Index, so the cursor of any rank resumes every rank.
func (d *deal) after(steps int) int {
	return min(d.n, d.begin+min(steps*d.size, d.rows)*d.rank.Count)
}

// Second reading: streams of indices, shuffles, mixes, and streams dealt out to
// ranks.

// Indices is the stream of a sampler's indices. A pipeline of your own begins
// with it: Map fetches the samples, Batch makes batches. A resume at any
// position takes no time. s.Len is called only when the stream is made. In a
// loop over Run or Epoch a panic in the sampler is the last error. Indices
// panics if s is nil. torchdata: SamplerWrapper.
func Indices(s Sampler) Stream[int] {
	panicIf(s == nil, "Indices: the sampler is nil")
	n := s.Len()
	state := &stageState{By: fmt.Sprintf("Indices(%s)", describe(s))}
	orderOf := keepTwo(s.Order)
	return streamOf(ranks{}, func(
		ctx context.Context, from Cursor, yield func(Item[int]) bool,
	) error {
		if _, err := stateOf(from, state.By, 0); err != nil {
			return err
		}
		if from.Pos > n {
			return from.refuse("pos must be at most %d", n)
		}
		var order func(pos int) int
		err := try(func() error {
			order = orderOf(from.Epoch)
			return nil
		})
		if err != nil {
			return fmt.Errorf("dataloader: Indices: epoch %d: %w", from.Epoch, err)
		}
		for pos := from.Pos; pos < n; pos++ {
			if !yield(Item[int]{Value: order(pos), Next: Cursor{from.Epoch, pos + 1, state}}) {
				return nil
			}
		}
		return nil
	})
}

// Shuffle delays each item by a random number of items. One item is read for
// each that leaves; about size items wait in memory, at most 3 × size. size
// must be at least 1, and 1 does not shuffle. The order depends on seed, epoch
// and size. PyTorch: the shuffle of an IterableDataset. webdataset:
// shuffle(size).
//
// The greater size is, the better the items mix. Measured on 2,000 shards of
// 100 records, a batch of 64 holds records of 23 shards behind Shuffle(1000),
// and of 55 behind Shuffle(10000). The first batch of an epoch holds records of
// few shards, on average of 4 and of 13, because nothing else has been read.
// Several readers cure that: of 32 Tar streams, joined by Mix before
// Shuffle(1000), the first batch holds records of 27 shards, and later ones of
// 34. OpenTar in a loader with Options.Shuffle mixes best: a batch holds
// records of 63 shards.
//
// Shuffle is not a full permutation. A source of size items keeps some of its
// order: the rank correlation is 0.38. If size is ten times the length of a
// small source, it is 0.04; memory grows only with what has been read. For data
// with indices use Random, which permutes a whole epoch in 8 KiB.
//
// Failed items are delayed like others. Put OnError behind Shuffle;
// Stream.OnError says why.
//
// A resume reads at most 3⅜ × size items again.
func (s Stream[T]) Shuffle(size int, seed uint64) Stream[T] {
	s.mustExist("Stream.Shuffle")
	panicIf(size < 1 || size > math.MaxInt/4,
		"Stream.Shuffle: the size is %d, must be 1 to %d", size, math.MaxInt/4)
	bound, step := 3*size, ceil(3*size, 8)
	if size == 1 {
		bound = 1 // all delays are 0
	}
	name := fmt.Sprintf("Shuffle(%d, seed %d), version 2%s", size, seed, s.ranks.steps())
	return staged(s.ranks.part("Shuffle", true), &stamp{by: name}, 0, func(
		ctx context.Context, from Cursor, state stageState, yield yieldAt[T],
	) error {
		first := from.Pos - state.N // the first item that is read
		outside := first < 0 || first > (math.MaxInt-bound)/2 || first%step != 0
		if outside || state.N == 0 && from.Pos > 0 {
			return from.refuse("its state is damaged: n is %d", state.N)
		}
		shuffler := &shuffler[T]{
			bound: bound, step: step, seed: hash(seed, uint64(from.Epoch)),
			from: from, state: state, yield: yield,
			pos: first, read: first, begin: first, last: state.Source,
		}
		return shuffler.run(s.items(ctx, state.Source))
	})
}

// A shuffler is one way through an epoch of a Shuffle. Everything in it belongs
// to the loop.
type shuffler[T any] struct {
	bound, step int    // see dueOf
	seed        uint64 // of the epoch
	from        Cursor
	state       stageState // of from
	yield       yieldAt[T]

	pos     int         // how many items have left
	read    int         // how many items have been read
	waiting calendar[T] // the items that have been read and have not left
	last    Cursor      // the source's cursor after the last item that was read

	// A resume begins with the item begin: all items before it have left.
	begin int
	kept  []Cursor // the source's cursors before the items begin, begin+step, …

	// These are for the items that a resume reads again; see
	// stageState.checkReread.
	failed  error // of the first item that failed
	changed error // why these items are not those that left before from
}

// run reads the source from the item begin on, and yields the items in their
// new order.
func (s *shuffler[T]) run(source iter.Seq2[Item[T], error]) error {
	for item, err := range source {
		if err != nil {
			return err
		}
		if s.read%s.step == 0 {
			s.kept = append(s.kept, s.last)
		}
		s.failed = cmp.Or(s.failed, item.Err)
		due := dueOf(s.seed, s.read, s.bound)
		s.waiting.put(due, Pair[T, error]{item.Value, item.Err})
		s.last = item.Next
		s.read++
		if !s.yieldDue(s.read - 1) {
			return s.changed
		}
	}
	for _, due := range s.waiting.dues() {
		if !s.yieldDue(due) {
			return s.changed
		}
	}
	if s.pos < s.from.Pos {
		return s.compareSource()
	}
	return nil
}

// yieldDue yields the items that are due, and drops those that left before the
// cursor. It returns false if no other item is to leave: changed says why, or
// is nil if the loop was left.
func (s *shuffler[T]) yieldDue(due int) bool {
	// Item i is due by i+bound-1, so the items up to due-bound have left.
	for s.begin+s.step <= due-s.bound+1 {
		s.begin += s.step
		s.kept = slices.Delete(s.kept, 0, 1)
	}
	var again *replay // shared by the items that are due now
	for {
		item, ok := s.waiting.take(due)
		if !ok {
			return true
		}
		s.pos++
		if s.pos == s.from.Pos { // all that left before the cursor
			s.changed = s.compareSource()
		}
		if s.changed != nil {
			return false
		}
		if s.pos <= s.from.Pos {
			continue
		}
		if again == nil {
			again = &replay{s.read - s.begin, s.last}
		}
		next := freshState{n: s.pos - s.begin, source: s.kept[0], again: again}
		if !s.yield(Item[T]{Value: item.First, Err: item.Second}, s.pos, next) {
			return false
		}
	}
}

// compareSource says that the source has changed, if what was read so far is
// not what the cursor says.
func (s *shuffler[T]) compareSource() error {
	first := s.from.Pos - s.state.N
	return s.state.checkReread(s.from, s.read-first, s.last, s.failed)
}

// dueOf says when item i leaves a Shuffle: when item i+d(i) has been read. The
// delay d(i) is the smaller of two random numbers below bound, which is 3 ×
// size. They depend on i and on h, a hash of the seed and the epoch. Items that
// leave at the same time keep their order, and those that are left at the end
// of the source leave in the order in which they are due. Shuffle(2, 3) of
// eight items:
//
//	item i         0   1   2   3   4   5   6   7
//	delay d(i)     0   0   3   4   0   0   5   0
//	due i+d(i)     0   1   5   7   4   5  11   7
//
//	item read      0   1   2   3   4   5   6   7   end
//	items leaving  0   1           4  2 5     3 7   6
//
// So the order from item j on does not depend on the items before j, once these
// have left. And when item r is read, all items up to r - 3 × size have left.
// So a resume begins at an item j that is so far back, reads again, and drops
// the items that left before the cursor. j is always a multiple of ⌈3 × size /
// 8⌉. Therefore at most nine of the source's cursors are kept, and the same
// place has the same cursor, whatever was resumed before.
//
// The items wait in a calendar, so an item costs nearly the same whatever size
// is, where a heap takes longer for more items. Memory grows with what is read.
//
// Rejected: a reservoir, from which a random item leaves when one is read. It
// mixes as well, but an item may stay in it for the whole epoch, so a resume
// would have to read all of the epoch again. And windows, which are permuted
// one after the other: they mix half as well, and the loop waits at every
// window until all of it has been read.
func dueOf(h uint64, i, bound int) int {
	first := below(uint64(bound), h, 2*uint64(i))
	second := below(uint64(bound), h, 2*uint64(i)+1)
	return i + min(first, second)
}

// A calendar holds the items of a Shuffle until they are due. It is a hash
// table with due as the key: an item is entered on day due modulo the number of
// days, at the end of that day's list. Items that are due at 5, 2, 9 and 5, in
// a calendar of 4 days:
//
//	day 0
//	day 1   5 → 9 → 5
//	day 2   2
//	day 3
//
// There are as many entries as days. If an item finds no entry free, the
// calendar grows to twice the size. So a list has at most one entry on average,
// and memory grows with the items that wait. An entry is reused when its item
// has left, so an item costs no allocation. A Go map from due to a slice of
// items took twice as long.
//
// R. Brown, Calendar Queues, Communications of the ACM 31 (1988).
type calendar[T any] struct {
	days []*entry[T] // the first entry of each list; their number is a power of two
	free *entry[T]   // a list of the entries that have no item
}

// An entry is an item in a calendar.
type entry[T any] struct {
	item Pair[T, error]
	due  int
	next *entry[T]
}

// put adds an item.
func (c *calendar[T]) put(due int, item Pair[T, error]) {
	if c.free == nil {
		c.grow()
	}
	e := c.free
	c.free = e.next
	*e = entry[T]{item, due, nil}
	place := c.day(due)
	for *place != nil {
		place = &(*place).next
	}
	*place = e
}

// grow makes new days and entries, twice as many, and puts the items there.
func (c *calendar[T]) grow() {
	old, n := c.days, max(8, 2*len(c.days))
	c.days = make([]*entry[T], n)
	entries := make([]entry[T], n)
	for i := range entries {
		entries[i].next, c.free = c.free, &entries[i]
	}
	for _, e := range old {
		for ; e != nil; e = e.next {
			c.put(e.due, e.item)
		}
	}
}

// day returns where the first entry of a day stands.
func (c *calendar[T]) day(due int) **entry[T] { return &c.days[due&(len(c.days)-1)] }

// take removes the first item that is due then. The entry must not keep the
// item while the body has it.
func (c *calendar[T]) take(due int) (item Pair[T, error], ok bool) {
	for place := c.day(due); *place != nil; place = &(*place).next {
		if e := *place; e.due == due {
			item, *place = e.item, e.next
			*e, c.free = entry[T]{next: c.free}, e
			return item, true
		}
	}
	return item, false
}

// dues returns when the items are due, sorted.
func (c *calendar[T]) dues() (all []int) {
	for _, e := range c.days {
		for ; e != nil; e = e.next {
			all = append(all, e.due)
		}
	}
	slices.Sort(all)
	return all
}

// A Stop says when a Mix ends. A source has ended when it is its turn and it
// has no more items. The sources a, bB and cCc, in turn:
//
//	StopAtLast      a b c B C c
//	StopAtFirst     a b c
//	CycleUntilLast  a b c a B C a b c a B
//	CycleForever    a b c a B C a b c a B c …
type Stop int

const (
	// StopAtLast leaves out sources that have ended, and ends with the last
	// one: every item comes exactly once. It is the default. With an endless
	// source the mix never ends.
	StopAtLast Stop = iota
	// StopAtFirst ends the mix when the first source has ended. The rest of the
	// others does not come.
	StopAtFirst
	// CycleUntilLast continues an ended source with its next epoch, until all
	// sources have ended once.
	CycleUntilLast
	// CycleForever continues an ended source with its next epoch, and never
	// ends.
	CycleForever
)

// MixOptions say how a Mix draws. The zero value takes the sources in turn, and
// every item once.
type MixOptions struct {
	// Weights are the shares of the sources, relative to each other; nil means
	// in turn. They count items: 1 and 1 of documents of 400 and of 4,000
	// tokens take 9 % of the tokens from the first. For shares of tokens divide
	// each weight by the mean length of its source, or pack each source, and
	// mix rows.
	Weights []float64
	Seed    uint64 // for Weights
	Stop    Stop
}

// Mix takes items from several sources, in turn or by weight: to train on
// several data sets in given proportions, or to read several Tar streams side
// by side. By weight, draws are not random but spread evenly: at any place of
// the epoch, the number of items from each source is its share within a few
// items. Seed and epoch say where the pattern begins.
//
// If the sources have indices, a sampler mixes them without goroutines, and its
// cursor is one line: among the recipes, Example_mixtureOfMany draws at random
// from many data sets, Example_quota puts exact numbers of each into every
// batch, and Example_changingMixture changes the weights in the course of an
// epoch.
//
// In epoch e every source starts with its epoch e. A source that is continued
// goes on with its epochs e+1, e+2, …; if one of them has no items, the mix
// cannot be continued. With StopAtLast the weights are those of the sources
// that are left. A source's error comes, with the source's number, when the
// source is drawn.
//
// Every source is read in a goroutine of its own, up to eight items ahead. At
// the start and at a resume the first 64 sources are opened at the same time,
// and the others at their first draw; the loop waits only for the source that
// it draws. So the sources run concurrently and must not share state: two
// FromSeq over one reader are wrong. When the loop is left, the context of the
// sources ends, and Mix waits for them to return.
//
// The cursor of a mix contains the cursors of all sources, the number of draws,
// and which sources have ended. Items that were read ahead but not yielded are
// read again at a resume.
//
// On several ranks, Shard each source, and Mix the parts. A Mix that is dealt
// out by Shard keeps its pattern: with two sources in turn, each of two ranks
// gets one source only. By weight, some numbers of ranks, such as 34, get long
// runs of one source. Only a Shuffle between Mix and Shard prevents that.
//
// Mix panics if there is no source, a source is nil, the number of weights is
// not that of the sources, a weight is not positive and finite, or Stop is none
// of the four. torchdata: MultiNodeWeightedSampler, MultiNodeRoundRobinSampler.
func Mix[T any](opts MixOptions, srcs ...Stream[T]) Stream[T] {
	srcs = slices.Clone(srcs)
	panicIf(len(srcs) == 0, "Mix: there is no source")
	known := ranksOf("Mix", srcs).part("Mix", false)
	panicIf(opts.Stop < StopAtLast || opts.Stop > CycleForever, "Mix: Stop is %d, "+
		"must be StopAtLast, StopAtFirst, CycleUntilLast or CycleForever", opts.Stop)
	panicIf(opts.Weights != nil && len(opts.Weights) != len(srcs),
		"Mix: there are %d weights for %d sources", len(opts.Weights), len(srcs))
	for i, w := range opts.Weights {
		panicIf(!(w > 0) || math.IsInf(w, 0),
			"Mix: Weights[%d] is %v, must be positive and finite", i, w)
	}
	stops := [...]string{"stop at last", "stop at first", "cycle until last", "cycle forever"}
	stop := stops[opts.Stop]
	name := fmt.Sprintf("Mix(%d in turn, %s)", len(srcs), stop)
	if opts.Weights != nil {
		name = fmt.Sprintf("Mix(seed %d, weights %v, %s), version 3", opts.Seed, opts.Weights, stop)
		opts.Weights = scaleWeights(opts.Weights)
	}
	return staged(known, &stamp{by: name}, len(srcs), func(
		ctx context.Context, from Cursor, state stageState, yield yieldAt[T],
	) error {
		ctx, cancel := context.WithCancel(ctx)
		m := &mixer[T]{
			ctx:     ctx,
			opts:    &opts,
			srcs:    srcs,
			seed:    hash(opts.Seed, uint64(from.Epoch)),
			readers: make([]*sourceReader[T], len(srcs)),
			stamp:   &stamp{by: name, past: state.Past},
			draws:   state.N,
			at:      slices.Clone(state.Sources),
			ended:   slices.Clone(state.Ended),
			base:    &state,
		}
		m.noteEnds()
		defer m.stopReaders(cancel)
		m.startFirst()
		pos := from.Pos
		for !m.over {
			i := m.chooseSource()
			item := m.nextItem(i)
			if end, ended := item.Err.(endOfSource); ended {
				if err := m.endSource(i, end.error); err != nil {
					return err
				}
				continue
			}
			m.noteMove(i, item.Next)
			pos++
			if !yield(item, pos, freshState{stamp: m.stamp, n: m.draws, moved: m.moved}) {
				return nil
			}
		}
		return nil
	})
}

// scaleWeights returns the weights multiplied by one power of two, which
// changes no ratio. It is so large that small weights keep their bits, but no
// sum of the weights is infinite. A weight that is still too small is not
// rounded to 0.
func scaleWeights(weights []float64) []float64 {
	_, exponent := math.Frexp(slices.Max(weights)) // the largest is below 2^exponent
	room := 1024 - bits.Len(uint(len(weights)))    // below 2^room the sum is below 2^1024
	scaled := make([]float64, len(weights))
	for i, w := range weights {
		scaled[i] = max(math.Ldexp(w, room-exponent), math.SmallestNonzeroFloat64)
	}
	return scaled
}

// A mixer is one way through an epoch of a Mix. Only the loop uses it, except
// for the slots of a sourceReader.
type mixer[T any] struct {
	ctx     context.Context // of the sources; it ends when the loop is left
	opts    *MixOptions
	srcs    []Stream[T]
	seed    uint64             // of the epoch
	readers []*sourceReader[T] // nil for a source that has not been started
	running sync.WaitGroup     // of the readers

	stamp *stamp   // of the cursors
	draws int      // with those of sources that were stepped over
	at    []Cursor // where the sources stand
	ended []bool   // which of them have ended

	// Cursors share these.
	base  *stageState // has at and ended as they were before the moves
	moved *move       // the last move since base; nil before the first
	moves int         // the number of moves since base

	// noteEnds makes these of ended.
	over bool      // whether so many sources have ended that the mix has
	live []int     // the sources that can be drawn, in their order
	sums []float64 // by weight: sums[j] is the sum of the weights of live[0] to live[j]
}

// noteEnds finds the sources that can be drawn, and sums their weights. It runs
// when a source has ended, and not for each draw.
func (m *mixer[T]) noteEnds() {
	switch m.opts.Stop {
	case StopAtFirst:
		m.over = slices.Contains(m.ended, true)
	case StopAtLast, CycleUntilLast:
		m.over = !slices.Contains(m.ended, false)
	}
	m.live, m.sums = m.live[:0], m.sums[:0]
	sum := 0.0
	for i, ended := range m.ended {
		if ended && m.opts.Stop == StopAtLast {
			continue
		}
		m.live = append(m.live, i)
		if m.opts.Weights != nil {
			sum += m.opts.Weights[i]
			m.sums = append(m.sums, sum)
		}
	}
}

// A sourceReader reads a source ahead, by fillSlots in a goroutine of its own.
// As in Prefetch, the loop sends permits and receives tasks, both of them
// numbers of slots. With one slot the goroutines wait for each other at every
// item. With mixAhead = 8 slots an item takes at most a quarter longer than
// with iter.Pull2. With 32 slots it takes no longer, but more items wait in
// memory.
//
// Rejected: iter.Pull2, a coroutine. Its first call opens the source, so it
// would have to run in another goroutine to open all sources at once. But a
// coroutine that another goroutine has begun ends the program in a goroutine
// that is locked to its thread (runtime.LockOSThread).
type sourceReader[T any] struct {
	items          []Item[T]
	permits, tasks chan int
}

// startFirst starts the sources whose turn comes first, at most mixFirst.
func (m *mixer[T]) startFirst() {
	first, _ := slices.BinarySearch(m.live, m.draws%len(m.srcs))
	for k := range min(len(m.live), mixFirst) {
		m.startReader(m.live[(first+k)%len(m.live)])
	}
}

// mixFirst bounds how many sources are opened at the same time, mixAhead how
// many items of each are read ahead.
const mixFirst, mixAhead = 64, 8

// startReader begins to read source i.
func (m *mixer[T]) startReader(i int) {
	r := &sourceReader[T]{
		items:   make([]Item[T], mixAhead),
		permits: make(chan int, mixAhead),
		tasks:   make(chan int, mixAhead),
	}
	m.readers[i] = r
	src, from := m.srcs[i], m.at[i]
	outer := scopeOf(m.ctx) // goroutines must not share it
	ctx := withScope(m.ctx, &scope{
		worker: outer.worker,
		seed:   hash(outer.seed, uint64(i)),
		spot:   outer.spot,
		idle:   outer.idle,
	})
	m.running.Go(func() {
		ctx := labelled(ctx, "source "+strconv.Itoa(i))
		fillSlots(ctx, src, from, r.items, r.permits, r.tasks)
	})
	for slot := range r.items {
		r.permits <- slot
	}
}

// chooseSource returns the number of the source whose turn it is. By weight,
// draw n takes the source into whose share of [0, 1) the fractional part of
// offset + n/φ falls, where φ is the golden ratio. Fractions approximate φ
// worse than any other number, so these points are spread most evenly: over
// 100,000 draws, the count of a source differs from its share by less than 6.
// With random draws it would differ by some hundred. Sources that are left out
// have no share. In turn, a source that is stepped over counts as a draw.
func (m *mixer[T]) chooseSource() int {
	n, count := m.draws, len(m.srcs)
	m.draws++
	if m.opts.Weights != nil {
		last := len(m.sums) - 1 // which has what rounding leaves over
		x := unit(m.seed+uint64(n)*golden) * m.sums[last]
		j := sort.Search(last, func(j int) bool { return m.sums[j] > x })
		return m.live[j]
	}
	turn := n % count
	j, _ := slices.BinarySearch(m.live, turn) // the first source from turn on
	i := m.live[j%len(m.live)]
	m.draws += (i - turn + count) % count // the sources that were stepped over
	return i
}

// nextItem returns the next item of source i, or one whose Err is an
// endOfSource, and lets the source read another item.
func (m *mixer[T]) nextItem(i int) Item[T] {
	if m.readers[i] == nil {
		m.startReader(i)
	}
	r := m.readers[i]
	slot := <-r.tasks
	item := takeItem(&r.items[slot])
	r.permits <- slot
	return item
}

// noteMove notes where source i stands from the next item on. After as many
// moves as there are sources, but at least 16, base is made anew. So the moves
// of a cursor that is kept take no more memory than its sources, or than 16
// cursors, and few sources do not cost a base for each item.
func (m *mixer[T]) noteMove(i int, to Cursor) {
	if m.moves == max(len(m.at), 16) {
		m.moves, m.moved = 0, nil
		m.base = &stageState{Sources: slices.Clone(m.at), Ended: slices.Clone(m.ended)}
	}
	m.at[i] = to
	m.moves++
	m.moved = &move{m.moved, m.base, i, to, m.ended[i]}
}

// endSource notes that source i has ended, and says why the mix cannot be
// continued, if so. A source that is cycled goes on with its next epoch, and
// the draw that has found the end is taken back: it will find that epoch's
// first item.
func (m *mixer[T]) endSource(i int, err error) error {
	at := m.at[i]
	cycle := m.opts.Stop == CycleUntilLast || m.opts.Stop == CycleForever
	switch {
	case err == nil && cycle && at.atStart():
		err = fmt.Errorf("dataloader: Mix: source %d has no items in epoch %d", i, at.Epoch)
	case err != nil && m.ctx.Err() == nil: // otherwise err is the cause of the context
		err = fmt.Errorf("Mix: source %d: %w", i, err)
	}
	if !m.ended[i] {
		m.ended[i] = true
		m.noteEnds()
	}
	if cycle {
		m.readers[i] = nil
		m.stamp = m.stamp.after(at)
		at = Cursor{Epoch: at.Epoch + 1}
		m.draws--
	}
	m.noteMove(i, at)
	return err
}

// stopReaders ends all readers, and waits for their goroutines.
func (m *mixer[T]) stopReaders(cancel func()) {
	cancel()
	for _, r := range m.readers {
		if r != nil {
			close(r.permits)
		}
	}
	m.running.Wait()
}

// Shard takes every Count-th item, from item Index on: this rank's part of a
// source that cannot deal itself out. tail says what happens if the items
// cannot be dealt out evenly, as Options.Tail does for a loader. Under PadTail
// and DropTail all ranks have the same number of items, and therefore of
// batches. For PadTail the items that are repeated are read once more from the
// start of the epoch. Shard panics if the rank or the tail makes no sense.
//
// Before Shard, put stages that drop or reorder items: Filter, Shuffle, and an
// OnError that drops the same items on all ranks. After Shard, ranks that have
// taken the same number of steps are in step as long as only Map, Prefetch,
// Batch, Take and Zip follow: the cursor of any rank resumes every rank, and
// any number of ranks. Filter, OnError, Unbatch, Shuffle, and a stage of your
// own that is not one for one put the ranks out of step. Under UnevenTail so do
// Batch, Repeat, Cycle, Chain, Mix, and another Shard. Then a cursor belongs to
// the rank that made it, and every other rank refuses it, so save one for each
// rank. The cursor of the only rank fits any number of ranks, unless Shuffle or
// Unbatch follow. The same holds after StreamOf.
//
// To mix several sources on several ranks, Shard each source, and Mix the
// parts; see Mix.
//
// All ranks must read the same items in the same order. If one of them reads
// fewer, as when its connection breaks in the middle of a shard, it has other
// items from there on, and its loop may get no error. An Opener that opens
// again prevents that (the recipe Example_reopenedStore). If TarError.Rest is
// true, an OnError before Shard must cancel the context, and not drop the item.
//
// Shard reads a row of Count items, one for each rank, and then yields the one
// of this rank. So its cursors stand between two rows, where all ranks agree,
// and nothing has to be counted again at a resume. Three ranks, and the cursors
// after their first items; the source's cursor is the same in all of them:
//
//	row 0    item 0  item 1  item 2
//	yielded  rank 0  rank 1  rank 2
//	Pos           1       2       3  differs from rank to rank, and so do the
//	                                 random numbers of a Map behind Shard
//	N             2       1       0  how many items of the row come after;
//	                                 Pos + N is where row 1 begins
func (s Stream[T]) Shard(rank Rank, tail Tail) Stream[T] {
	s.mustExist("Stream.Shard")
	rank, bad := rank.withCount()
	panicIf(bad != nil, "Stream.Shard: %v", bad)
	panicIf(tail < PadTail || tail > UnevenTail,
		"Stream.Shard: the tail is %d, must be PadTail, DropTail or UnevenTail", tail)
	dealt := staged(s.ranks.part("Shard", false), &stamp{by: "Shard by steps"}, 0, func(
		ctx context.Context, from Cursor, state stageState, yield yieldAt[T],
	) error {
		if state.N >= maxRanks {
			return from.refuse("its state is damaged: n is %d, must be less than %d",
				state.N, maxRanks)
		}
		row := from.Pos + state.N // where the row begins
		width := 0                // how many of its items have been read
		var own Item[T]           // this rank's item of the row
		last := state.Source      // the source's cursor after the item that was read last
		yieldOwn := func() bool {
			next := freshState{n: max(0, width-rank.Index-1), source: last}
			return yield(own, row+rank.Index+1, next)
		}
		for item, err := range s.items(ctx, state.Source) {
			if err != nil {
				return err
			}
			if width == rank.Index {
				own = item
			}
			last = item.Next
			width++
			if width == rank.Count {
				if !yieldOwn() {
					return nil
				}
				row += width
				width, own = 0, Item[T]{}
			}
		}
		missing := rank.Index >= width // from the last row, which is not full
		if width == 0 || tail == DropTail || tail == UnevenTail && missing {
			return nil
		}
		if missing { // under PadTail the epoch begins again
			var err error
			own, err = readItem(ctx, s, from.Epoch, (rank.Index-width)%(row+width))
			if err != nil {
				return err
			}
		}
		yieldOwn()
		return nil
	})
	dealt.ranks = dealt.ranks.deal(rank, 1, tail)
	return dealt
}

// readItem reads item n of an epoch, and the items before it.
func readItem[T any](ctx context.Context, s Stream[T], epoch, n int) (item Item[T], err error) {
	for item, err = range s.items(ctx, Cursor{Epoch: epoch}) {
		if n == 0 || err != nil {
			return item, err
		}
		n--
	}
	return item, fmt.Errorf("dataloader: Stream.Shard: "+
		"epoch %d has become shorter while it was read", epoch)
}
