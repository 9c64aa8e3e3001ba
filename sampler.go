package dataloader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
)

// A Sampler is an order of the samples for each epoch: Order(epoch)(pos) is the index of the sample at
// position pos, 0 <= pos < Len(). It is a pure function, safe for concurrent use: no generator that goes
// on from epoch to epoch, no set_epoch to forget. That is what makes a resume a matter of arithmetic.
//
// A String method, if there is one, describes the order in cursors: two samplers that describe themselves
// alike are taken for the same. Without one it is the type and the length. PyTorch: Sampler.
type Sampler interface {
	Len() int
	Order(epoch int) func(pos int) int
}

// A BatchSampler is an order of whole batches: Batches(epoch)(k) has the indices of batch k,
// 0 <= k < Len(), with Len the same in every epoch. Else it is as a Sampler is. The loader does not change
// the slices. PyTorch: batch_sampler.
type BatchSampler interface {
	Len() int
	Batches(epoch int) func(k int) []int
}

// A sampler is a Sampler by its parts.
type sampler struct {
	n     int
	name  string
	order func(epoch int) func(pos int) int
}

// Len returns the number of positions in an epoch.
func (s sampler) Len() int { return s.n }

// Order returns the order of an epoch.
func (s sampler) Order(epoch int) func(pos int) int { return s.order(epoch) }

// String describes the sampler as in "Random(60000, seed 9)".
func (s sampler) String() string { return s.name }

// describe says in words which sampler s is, for cursors and errors.
func describe(s interface{ Len() int }) string {
	if s, ok := s.(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprintf("%T(%d)", s, s.Len())
}

// notNegative panics if the argument n of a constructor is negative.
func notNegative(constructor string, n int) {
	panicIf(n < 0, "%s: n is %d, must not be negative", constructor, n)
}

// Sequential is the order 0, 1, …, n-1. It panics if n is negative. PyTorch: SequentialSampler.
func Sequential(n int) Sampler {
	notNegative("Sequential", n)
	return sampler{n, fmt.Sprintf("Sequential(%d)", n), func(int) func(int) int {
		return func(pos int) int { return pos }
	}}
}

// Random is a new permutation of 0 … n-1 in every epoch. It takes no memory to speak of, whatever n is,
// and any position of any epoch is there at once. It panics if n is negative.
//
// PyTorch: RandomSampler, though not its numbers; those are TorchRandom's. Shuffling a Subset is PyTorch's
// SubsetRandomSampler.
func Random(n int, seed uint64) Sampler {
	notNegative("Random", n)
	return sampler{n, fmt.Sprintf("Random(%d, seed %d)", n, seed), func(epoch int) func(int) int {
		return permutation(n, hash(seed, uint64(epoch), uint64(n)))
	}}
}

// maxTable is the length up to which a table holds the permutation (8 KiB). Below it there are too few
// bits for a Feistel network to mix: at n = 10 no number of rounds makes all pairs equally likely.
const maxTable = 4096

// permutation returns a permutation of 0 … n-1 as a function.
func permutation(n int, seed uint64) func(pos int) int {
	if n > maxTable {
		return newFeistel(uint64(n), seed).at
	}
	table := make([]uint16, n)
	for i := range n { // Fisher and Yates, inside out: i goes to a place j <= i, and what was there to i
		j := below(uint64(i)+1, seed, uint64(i))
		table[i] = table[j]
		table[j] = uint16(i)
	}
	return func(pos int) int { return int(table[pos]) }
}

// A feistel is a permutation of 0 … n-1 that is computed position by position: a Feistel network whose
// halves have different radices, so that its domain a × 2^k, with a = ⌈n/2^k⌉, is hardly larger than n. A
// value outside n is sent round again ("cycle walking": Black and Rogaway, Ciphers with Arbitrary Finite
// Domains, 2002), which happens less than once in √n values.
//
// A balanced network would have a power of 4 for its domain and walk up to four times as far; a linear
// congruence or fewer rounds would be faster, but neighbours stay visibly together in the batches.
type feistel struct {
	n, a uint64
	k    uint // the right half has k bits, the left half counts to a
	keys [8]uint64
}

func newFeistel(n, seed uint64) *feistel {
	k := uint(bits.Len64(n-1)) / 2
	f := &feistel{n: n, k: k, a: (n-1)>>k + 1}
	for j := range f.keys {
		f.keys[j] = counter(seed, uint64(j))
	}
	return f
}

// at returns the value at position pos. Each round adds to one half a hash of the other, modulo its radix,
// and so can be undone: the whole is a bijection, of the domain and thereby of 0 … n-1.
func (f *feistel) at(pos int) int {
	x, mask := uint64(pos), uint64(1)<<f.k-1
	for {
		left, right := x>>f.k, x&mask
		for j := 0; j < len(f.keys); j += 2 {
			add, _ := bits.Mul64(scramble(right^f.keys[j]), f.a) // uniform in 0 … a-1
			if left += add; left >= f.a {
				left -= f.a
			}
			right ^= scramble(left^f.keys[j+1]) >> 32 & mask
		}
		if x = left<<f.k | right; x < f.n {
			return int(x)
		}
	}
}

// scramble is the round function: two multiplications and a shift let every bit of x reach the high bits,
// which are the ones used. With one multiplication, pairs of positions stay correlated up to n = 4000.
func scramble(x uint64) uint64 {
	x *= 0x9FB21C651E98DF25
	x ^= x >> 32
	return x * 0xD6E8FEB86659FD93
}

// mix is the finalizer of SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number
// Generators, 2014): a bijection in which every bit depends on every bit.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// golden is 2^64 divided by the golden ratio, the step of SplitMix64.
const golden = 0x9E3779B97F4A7C15

// hash makes one seed of several numbers. It never adds them: with seed+epoch, epoch 1 of seed 7 would be
// epoch 0 of seed 8.
func hash(parts ...uint64) uint64 {
	h := uint64(0)
	for _, part := range parts {
		h = mix((h ^ part) + golden)
	}
	return h
}

// counter is the i-th output of SplitMix64: random numbers by position, without a generator to carry.
func counter(seed, i uint64) uint64 { return mix(seed + (i+1)*golden) }

// below is a number in 0 … n-1, uniform but for n/2^64 (Lemire, Fast Random Integer Generation, 2019).
func below(n, seed, i uint64) int {
	high, _ := bits.Mul64(counter(seed, i), n)
	return int(high)
}

// unit makes a number in [0, 1), a multiple of 2^-53, of 64 random bits.
func unit(x uint64) float64 { return float64(x>>11) * 0x1p-53 }

// checkCount reports what is wrong with count, the length of an epoch drawn from n samples: it must be
// positive, but for the empty epoch of no samples.
func checkCount(constructor string, n, count int) error {
	if count > 0 && n > 0 || count == 0 && n == 0 {
		return nil
	}
	return fmt.Errorf("dataloader: %s: count is %d, must be positive; there are %d samples to draw from", constructor, count, n)
}

// RandomWithReplacement draws each of the count positions of an epoch from 0 … n-1, whatever the others
// are. It panics if n is negative, and if count is not positive (both may be 0). PyTorch: RandomSampler
// with replacement=True and num_samples=count.
func RandomWithReplacement(n, count int, seed uint64) Sampler {
	notNegative("RandomWithReplacement", n)
	if err := checkCount("RandomWithReplacement", n, count); err != nil {
		panic(err.Error())
	}
	name := fmt.Sprintf("RandomWithReplacement(%d of %d, seed %d)", count, n, seed)
	return sampler{count, name, func(epoch int) func(int) int {
		h := hash(seed, uint64(epoch), uint64(n))
		return func(pos int) int { return below(uint64(n), h, uint64(pos)) }
	}}
}

// Weighted draws each position of an epoch with a chance in proportion to the sample's weight: weights[i]
// for sample i. A sample of weight 0 is never drawn. Weights must be finite and not negative, one must be
// positive, and without replacement at least count; count must be positive. PyTorch:
// WeightedRandomSampler, which has a limit of 2^24 samples and draws those of weight 0 when it must.
//
// With replacement a draw takes constant time, from a table (Walker, 1974; Vose, A Linear Algorithm for
// Generating Random Numbers with a Given Distribution, 1991). Without, the order of an epoch is
// computed when the epoch starts: each sample gets an exponential waiting time with its weight as the rate
// and the count shortest are taken, soonest first (Efraimidis and Spirakis, Weighted Random Sampling with a
// Reservoir, 2006).
func Weighted(weights []float64, count int, replace bool, seed uint64) (Sampler, error) {
	if count <= 0 {
		return nil, fmt.Errorf("dataloader: Weighted: count is %d, must be positive", count)
	}
	var items []int // those of positive weight
	var positive []float64
	digest := uint64(0) // tells cursors of other weights
	for i, w := range weights {
		if w < 0 || math.IsNaN(w) || math.IsInf(w, 0) {
			return nil, fmt.Errorf("dataloader: Weighted: weights[%d] is %v, must be finite and not negative", i, w)
		}
		digest = hash(digest, math.Float64bits(w))
		if w > 0 {
			items = append(items, i)
			positive = append(positive, w)
		}
	}
	if len(items) == 0 {
		return nil, fmt.Errorf("dataloader: Weighted: none of the %d weights is positive", len(weights))
	}
	if !replace && count > len(items) {
		return nil, fmt.Errorf("dataloader: Weighted: count is %d without replacement, must be at most %d, the number of positive weights", count, len(items))
	}
	var draw func(seed uint64) func(pos int) int // of an index of items
	if replace {
		draw = aliasTable(positive)
	} else {
		draw = func(seed uint64) func(int) int { return race(positive, count, seed) }
	}
	name := fmt.Sprintf("Weighted(%d of %d, weights #%x, replace %t, seed %d)", count, len(weights), digest, replace, seed)
	return sampler{count, name, func(epoch int) func(int) int {
		at := draw(hash(seed, uint64(epoch), uint64(len(weights))))
		return func(pos int) int { return items[at(pos)] }
	}}, nil
}

// aliasTable prepares draws with replacement. It spreads the weights over columns of equal height, one for each
// item: column j keeps the share keep[j] of its height for item j and gives the rest to item alias[j]. An
// item below the mean has its column filled up by one above it, which thereby shrinks and may fall below the mean
// in turn.
func aliasTable(weights []float64) func(seed uint64) func(pos int) int {
	n, largest, sum := len(weights), slices.Max(weights), 0.0
	for _, w := range weights {
		sum += w / largest // at most n, whatever the weights
	}
	keep, alias := make([]float64, n), make([]int, n)
	var low, high []int
	sort := func(j int) {
		if keep[j] < 1 {
			low = append(low, j)
		} else {
			high = append(high, j)
		}
	}
	for j, w := range weights {
		keep[j] = w / largest * float64(n) / sum
		sort(j)
	}
	for len(low) > 0 && len(high) > 0 {
		l, h := low[len(low)-1], high[len(high)-1]
		low, high = low[:len(low)-1], high[:len(high)-1]
		alias[l] = h
		keep[h] -= 1 - keep[l]
		sort(h)
	}
	for _, j := range append(low, high...) { // what rounding has left over is full columns
		keep[j] = 1
	}
	return func(seed uint64) func(int) int {
		return func(pos int) int {
			column, share := bits.Mul64(counter(seed, uint64(pos)), uint64(n))
			if j := int(column); unit(share) < keep[j] {
				return j
			}
			return alias[column]
		}
	}
}

// race draws without replacement: count items in the order in which their waiting times end.
func race(weights []float64, count int, seed uint64) func(pos int) int {
	times, order, largest := make([]float64, len(weights)), make([]int, len(weights)), slices.Max(weights)
	for j, w := range weights {
		times[j] = -math.Log1p(-unit(counter(seed, uint64(j)))) / (w / largest)
		order[j] = j
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Or(cmp.Compare(times[i], times[j]), i-j) })
	order = slices.Clone(order[:count])
	return func(pos int) int { return order[pos] }
}

// maxTorch is the largest n for which torch draws its permutations as TorchRandom does.
const maxTorch = 1 << 32 / 20

// TorchRandom is torch's own order, element for element: in epoch e, randperm(n) of a generator seeded
// with seed+e, as DistributedSampler has it. With Options.Shard and Tail it gives each rank what
// DistributedSampler would, so that a Go job and a Python job can share an epoch.
//
// Torch's other samplers (RandomSampler, SubsetRandomSampler, WeightedRandomSampler) go on with a generator
// from epoch to epoch, so that their orders depend on what was drawn from it before: even on how the
// last loop ended. An order that depends on nothing but the epoch cannot have that history; epoch 0 of
// RandomSampler with a fresh generator is TorchRandom's too.
//
// The table of an epoch takes 4 bytes a sample. Torch's seeds have 32 bits, and seed and epoch are added:
// use Random unless torch's numbers are what you need. It panics if n is negative or above 2^32/20,
// from where on torch draws in another way.
func TorchRandom(n int, seed uint64) Sampler {
	notNegative("TorchRandom", n)
	panicIf(n > maxTorch, "TorchRandom: n is %d, must be at most %d", n, maxTorch)
	return sampler{n, fmt.Sprintf("TorchRandom(%d, seed %d)", n, seed), func(epoch int) func(int) int {
		order := make([]uint32, n)
		for i := range order {
			order[i] = uint32(i)
		}
		twister := newTwister(uint32(seed + uint64(epoch)))
		for i := range n - 1 {
			j := i + int(twister.next()%uint32(n-i))
			order[i], order[j] = order[j], order[i]
		}
		return func(pos int) int { return int(order[pos]) }
	}}
}

// A twister is the generator MT19937 (Matsumoto and Nishimura, Mersenne Twister, 1998).
type twister struct {
	state [624]uint32
	used  int
}

func newTwister(seed uint32) *twister {
	t := &twister{used: 624}
	for i := range t.state {
		t.state[i] = seed
		seed = 1812433253*(seed^seed>>30) + uint32(i) + 1
	}
	return t
}

// next returns the next 32 random bits.
func (t *twister) next() uint32 {
	if t.used == len(t.state) {
		for i := range t.state {
			y := t.state[i]&(1<<31) | t.state[(i+1)%624]&(1<<31-1)
			t.state[i] = t.state[(i+397)%624] ^ y>>1 ^ -(y&1)&0x9908B0DF
		}
		t.used = 0
	}
	y := t.state[t.used]
	t.used++
	y ^= y >> 11
	y ^= y << 7 & 0x9D2C5680
	y ^= y << 15 & 0xEFC60000
	return y ^ y>>18
}

// OrderFunc is any order that the caller computes: order(epoch) returns the n indices of an epoch, the same
// whenever it is asked for that epoch. The result is copied; one of another length fails every batch of
// the epoch. All OrderFuncs of one length look alike to a cursor. It panics if n is negative or order nil.
func OrderFunc(n int, order func(epoch int) []int) Sampler {
	notNegative("OrderFunc", n)
	panicIf(order == nil, "OrderFunc: order is nil")
	return sampler{n, fmt.Sprintf("OrderFunc(%d)", n), func(epoch int) func(int) int {
		indices := slices.Clone(order(epoch))
		if len(indices) != n { // a Sampler has no other way to say so; the loader makes an error of it
			panic(fmt.Errorf("OrderFunc: the order of epoch %d has %d positions, must have %d", epoch, len(indices), n))
		}
		return func(pos int) int { return indices[pos] }
	}}
}

// Resize makes epochs of count positions out of a sampler with another length, by walking on through
// its epochs: with count = 2·s.Len(), epoch 3 is s's epochs 6 and 7. It panics if s is nil or
// count is not positive (it may be 0 if s is empty). PyTorch: num_samples.
func Resize(s Sampler, count int) Sampler {
	panicIf(s == nil, "Resize: the sampler is nil")
	n := s.Len()
	if err := checkCount("Resize", n, count); err != nil {
		panic(err.Error())
	}
	inner := &epochs[func(int) int]{order: s.Order}
	return sampler{count, fmt.Sprintf("Resize(%s, %d)", describe(s), count), func(epoch int) func(int) int {
		return func(pos int) int {
			pos += epoch * count // in the endless walk through the epochs of s
			return inner.at(pos / n)(pos % n)
		}
	}}
}

// An epochs keeps the orders of the two epochs that were asked for last, an even and an odd one: to
// compute an order may take as long as the epoch has positions. Safe for concurrent use.
type epochs[F any] struct {
	order func(epoch int) F
	kept  [2]atomic.Pointer[epochOrder[F]]
}

type epochOrder[F any] struct {
	epoch int
	order F
}

func (e *epochs[F]) at(epoch int) F {
	kept := &e.kept[epoch&1]
	o := kept.Load()
	if o == nil || o.epoch != epoch {
		o = &epochOrder[F]{epoch, e.order(epoch)}
		kept.Store(o)
	}
	return o.order
}

// Batches cuts the order of s into batches of size samples, the last of which may be shorter, or is left
// out with dropLast. A loader does the same with Options.Sampler and BatchSize; this is for batch samplers of your
// own that build on it. It panics if s is nil or size is not positive. PyTorch: BatchSampler.
func Batches(s Sampler, size int, dropLast bool) BatchSampler {
	panicIf(s == nil, "Batches: the sampler is nil")
	panicIf(size <= 0, "Batches: size is %d, must be positive", size)
	n := s.Len()
	count := ceil(n, size)
	if dropLast {
		count = n / size
	}
	return batchSampler{count, fmt.Sprintf("Batches(%s, %d)", describe(s), size), func(epoch int) func(int) []int {
		order := s.Order(epoch)
		return func(k int) []int {
			indices := make([]int, min(size, n-k*size))
			for j := range indices {
				indices[j] = order(k*size + j)
			}
			return indices
		}
	}}
}

// A batchSampler is a BatchSampler by its parts.
type batchSampler struct {
	n       int
	name    string
	batches func(epoch int) func(k int) []int
}

// Len returns the number of batches in an epoch.
func (b batchSampler) Len() int { return b.n }

// Batches returns the batches of an epoch.
func (b batchSampler) Batches(epoch int) func(k int) []int { return b.batches(epoch) }

// String describes the batch sampler as in "Batches(Random(60000, seed 9), 64)".
func (b batchSampler) String() string { return b.name }

// ceil is a/b, rounded up, for a >= 0 and b > 0.
func ceil(a, b int) int { return a/b + min(1, a%b) }

// Buckets makes batches of samples of similar length, so that little of a padded batch is padding:
// lengths[i] is the length of sample i, and no batch takes more than budget, its longest length times its
// number of samples. Samples whose lengths differ by less than an eighth share a bucket; in every epoch
// each bucket is shuffled and cut anew, and the batches of all buckets come in a new order.
//
// A negative length, or one above the budget, is an error that names the sample.
func Buckets(lengths []int, budget int, seed uint64) (BatchSampler, error) {
	if budget <= 0 {
		return nil, fmt.Errorf("dataloader: Buckets: budget is %d, must be positive", budget)
	}
	items := make([]int, len(lengths)) // the samples by length
	digest := uint64(0)                // tells cursors of other lengths
	for i, length := range lengths {
		if length < 0 || length > budget {
			return nil, fmt.Errorf("dataloader: Buckets: lengths[%d] is %d, must be 0 to %d, the budget", i, length, budget)
		}
		items[i] = i
		digest = hash(digest, uint64(length))
	}
	slices.SortFunc(items, func(i, j int) int { return cmp.Or(lengths[i]-lengths[j], i-j) })

	type bucket struct {
		items       []int
		from, count int // its batches are the count ones starting with number from
	}
	var buckets []bucket
	var of []int // the bucket that each batch is cut from
	for len(items) > 0 {
		shortest, n := lengths[items[0]], 0
		for n < len(items) && lengths[items[n]]-shortest <= shortest/8 {
			n++
		}
		size := budget / max(1, lengths[items[n-1]])
		b := bucket{items[:n], len(of), ceil(n, size)}
		of = append(of, slices.Repeat([]int{len(buckets)}, b.count)...)
		buckets = append(buckets, b)
		items = items[n:]
	}
	name := fmt.Sprintf("Buckets(%d, lengths #%x, budget %d, seed %d)", len(lengths), digest, budget, seed)
	return batchSampler{len(of), name, func(epoch int) func(int) []int {
		batch := Random(len(of), seed).Order(epoch)
		orders := make([]func(int) int, len(buckets))
		for j, b := range buckets {
			orders[j] = Random(len(b.items), hash(seed, uint64(j))).Order(epoch)
		}
		return func(k int) []int {
			k = batch(k)
			b, order := buckets[of[k]], orders[of[k]]
			k -= b.from // cut as evenly as can be: no batch is much smaller than the others
			from, to := k*len(b.items)/b.count, (k+1)*len(b.items)/b.count
			indices := make([]int, to-from)
			for j := range indices {
				indices[j] = b.items[order(from+j)]
			}
			return indices
		}
	}}, nil
}

// An order is what a Sampler or a BatchSampler has said about an epoch: one of the two functions, or why
// there is none.
type order struct {
	samples func(pos int) int
	batches func(k int) []int
	err     error
}

// orderOf returns the function that asks one of the two samplers, whichever is not nil.
func orderOf(s Sampler, b BatchSampler) func(epoch int) order {
	return func(epoch int) order {
		if b != nil {
			return order{batches: b.Batches(epoch)}
		}
		return order{samples: s.Order(epoch)}
	}
}

// Indices is the stream of a sampler's indices, and the beginning of a pipeline of one's own: Map fetches them
// and Batch makes batches. A resume at any position is immediate. torchdata: SamplerWrapper.
func Indices(s Sampler) Stream[int] {
	bad := badIf(s == nil, "Indices: the sampler is nil")
	var at *stage // the same for all cursors
	orders := &epochs[order]{order: orderOf(s, nil)}
	if bad == nil {
		at = &stage{By: describe(s)}
	} else {
		at = &stage{}
	}
	return staged(at.By, 0, bad, func(ctx context.Context, from Cursor, _ stage, emit emitter[int]) error {
		order, err := try(func() (order, error) { return orders.at(from.Epoch), nil })
		if err != nil {
			return failed("Indices", from, err)
		}
		if from.Pos > s.Len() {
			return from.refused("pos must be at most %d", s.Len())
		}
		for pos := from.Pos; pos < s.Len(); pos++ {
			if !emit(order.samples(pos), nil, pos+1, at) {
				return nil
			}
		}
		return nil
	})
}

// Shuffle gives the items in a random order within windows of the given size, which is all it keeps in memory. Windows
// are consecutive; the first of an epoch is shorter, by a random number, so that their edges move from epoch to epoch. A
// resume reads one window again at most. For a source with indices, Random shuffles the whole epoch, at no cost.
// PyTorch: the shuffle of an IterableDataset, a shuffle buffer.
func (s Stream[T]) Shuffle(window int, seed uint64) Stream[T] {
	name := fmt.Sprintf("Shuffle(%d, seed %d)", window, seed)
	bad := cmp.Or(badNil("Shuffle", s), badIf(window < 1, "Shuffle: the window is %d, must be at least 1", window))
	return staged(name, 0, bad, func(ctx context.Context, from Cursor, at stage, emit emitter[T]) error {
		type drawn struct {
			value T
			err   error
		}
		var items []drawn
		pos, h := from.Pos, hash(seed, uint64(from.Epoch))
		// give hands over the window, but for the first at.N, of which the stage says that they were before. at.M is
		// the number of the window, end the source's cursor after it.
		give := func(end Cursor) bool {
			order := permutation(len(items), counter(h, uint64(at.M)))
			for n := at.N; n < len(items); n++ {
				next := &stage{By: name, N: n + 1, M: at.M, Source: at.Source}
				if n+1 == len(items) {
					next = &stage{By: name, M: at.M + 1, Source: end}
				}
				item := items[order(n)]
				items[order(n)] = drawn{} // so that it can be collected
				if pos++; !emit(item.value, item.err, pos, next) {
					return false
				}
			}
			at = stage{M: at.M + 1, Source: end}
			items = items[:0]
			return true
		}
		last := at.Source
		for item, err := range s(ctx, at.Source) {
			if fatal(item, err) {
				return err
			}
			items = append(items, drawn{item.Value, err})
			last = item.Next
			if size := window; len(items) == size || at.M == 0 && len(items) == 1+below(uint64(size), h, 0) {
				if !give(last) {
					return nil
				}
			}
		}
		give(last)
		return nil
	})
}

// Stop says when a Mix ends. A source has ended when it is its turn and it has nothing more.
type Stop int

const (
	// StopAtFirst ends the mix when the first source has ended.
	StopAtFirst Stop = iota
	// StopAtLast leaves out sources that have ended and ends with the last: every item comes exactly once.
	StopAtLast
	// CycleUntilLast begins an ended source again, with its next epoch, until all have ended once.
	CycleUntilLast
	// CycleForever begins an ended source again and never ends.
	CycleForever
)

// MixOptions say how a Mix draws. The zero value takes the sources in turn and ends with the first.
type MixOptions struct {
	Weights []float64 // the chance of each source, relative to the others; nil: in turn
	Seed    uint64    // for Weights
	Stop    Stop
}

// Mix takes items from several sources, in turn or at random by weight. In epoch e every source starts at its
// epoch e; one that is begun again goes on with its epochs e+1, e+2, …. If such an epoch has no items at all,
// that is an error which names the source. With StopAtLast, the weights are those of the sources that are left.
// torchdata: MultiNodeWeightedSampler, MultiNodeRoundRobinSampler.
func Mix[T any](opts MixOptions, srcs ...Stream[T]) Stream[T] {
	srcs, opts.Weights = slices.Clone(srcs), slices.Clone(opts.Weights)
	name := fmt.Sprintf("Mix(%d in turn, stop %d)", len(srcs), opts.Stop)
	if opts.Weights != nil {
		name = fmt.Sprintf("Mix(seed %d, weights %v, stop %d)", opts.Seed, opts.Weights, opts.Stop)
	}
	return staged(name, len(srcs), cmp.Or(badNil("Mix", srcs...), opts.check(len(srcs))), func(ctx context.Context, from Cursor, at stage, emit emitter[T]) error {
		m := mixer[T]{ctx: ctx, opts: &opts, srcs: srcs, at: at, seed: hash(opts.Seed, uint64(from.Epoch)), pulls: make([]pull[T], len(srcs))}
		defer m.stop()
		for pos := from.Pos + 1; ; pos++ {
			item, err, ok := m.next()
			if !ok || fatal(item, err) {
				return err
			}
			if !emit(item.Value, err, pos, &stage{By: name, N: m.at.N, Sources: slices.Clone(m.at.Sources), Ended: m.at.Ended}) {
				return nil
			}
		}
	})
}

// check says what is wrong with the options for so many sources.
func (o MixOptions) check(sources int) error {
	if sources == 0 {
		return errors.New("dataloader: Mix: there is no source")
	}
	if o.Stop < StopAtFirst || o.Stop > CycleForever {
		return fmt.Errorf("dataloader: Mix: Stop is %d, must be StopAtFirst, StopAtLast, CycleUntilLast or CycleForever", o.Stop)
	}
	if o.Weights != nil && len(o.Weights) != sources {
		return fmt.Errorf("dataloader: Mix: there are %d weights for %d sources", len(o.Weights), sources)
	}
	for i, w := range o.Weights {
		if !(w > 0) || math.IsInf(w, 0) {
			return fmt.Errorf("dataloader: Mix: Weights[%d] is %v, must be positive and finite", i, w)
		}
	}
	return nil
}

// A mixer goes through one epoch of a Mix.
type mixer[T any] struct {
	ctx   context.Context
	opts  *MixOptions
	srcs  []Stream[T]
	at    stage // N counts the turns, or draws; Sources are where the sources stand
	seed  uint64
	pulls []pull[T]
}

// A pull is a source being read, if its functions are not nil.
type pull[T any] struct {
	next func() (Item[T], error, bool)
	stop func()
}

// next returns the next item, or reports that the mix has ended, or why it cannot go on.
func (m *mixer[T]) next() (item Item[T], err error, ok bool) {
	for {
		i := m.choose()
		m.at.N++
		for {
			p := &m.pulls[i]
			if p.next == nil {
				p.next, p.stop = iter.Pull2(m.srcs[i](m.ctx, m.at.Sources[i]))
			}
			if item, err, ok = p.next(); ok {
				if !fatal(item, err) {
					m.at.Sources[i] = item.Next
				}
				return item, err, true
			}
			if m.opts.Stop >= CycleUntilLast && m.at.Sources[i].atStart() {
				return item, fmt.Errorf("dataloader: Mix: source %d gave nothing in epoch %d", i, m.at.Sources[i].Epoch), false
			}
			m.at.Ended = slices.Clone(m.at.Ended) // cursors that were handed out have the old one
			m.at.Ended[i] = true
			if m.opts.Stop == StopAtFirst || m.opts.Stop != CycleForever && !slices.Contains(m.at.Ended, false) {
				return item, nil, false
			}
			if m.opts.Stop == StopAtLast {
				break // choose another
			}
			m.at.Sources[i] = Cursor{Epoch: m.at.Sources[i].Epoch + 1}
			*p = pull[T]{}
		}
	}
}

// choose returns the number of the source whose turn it is. By weight, those that are left out have no chance.
func (m *mixer[T]) choose() int {
	if m.opts.Weights == nil {
		return m.at.N % len(m.srcs)
	}
	out := func(i int) bool { return m.opts.Stop == StopAtLast && m.at.Ended[i] }
	largest, total := slices.Max(m.opts.Weights), 0.0
	for i, w := range m.opts.Weights {
		if !out(i) {
			total += w / largest
		}
	}
	draw, last := unit(counter(m.seed, uint64(m.at.N)))*total, 0
	for i, w := range m.opts.Weights {
		if out(i) {
			continue
		}
		if draw -= w / largest; draw < 0 {
			return i
		}
		last = i // and if rounding has left something over
	}
	return last
}

// stop ends the reading of all sources.
func (m *mixer[T]) stop() {
	for _, p := range m.pulls {
		if p.stop != nil {
			p.stop()
		}
	}
}

// A Shard is one part of Count: the share of this rank, process or machine. The zero value is the only
// part. PyTorch: rank and num_replicas.
type Shard struct{ Index, Count int }

// check returns the shard with its Count filled in, or says what is wrong with it.
func (s Shard) check() (Shard, error) {
	count := max(s.Count, 1)
	if s.Count < 0 || s.Index < 0 || s.Index >= count {
		return s, fmt.Errorf("Shard is {Index: %d, Count: %d}; Count must not be negative, and Index must be 0 to %d", s.Index, s.Count, count-1)
	}
	return Shard{s.Index, count}, nil
}

// ShardFromEnv returns the shard of this process as its launcher describes it in the environment: RANK
// and WORLD_SIZE (torchrun), OMPI_COMM_WORLD_RANK and _SIZE (Open MPI's mpirun), SLURM_PROCID and SLURM_NTASKS (srun),
// PMI_RANK and PMI_SIZE (mpirun of MPICH and Intel MPI), or JOB_COMPLETION_INDEX (a Kubernetes indexed Job, in whose manifest you set WORLD_SIZE to its number of
// completions). The first whose rank is set counts. Without any, it is the zero Shard: a single
// process. A number that is missing or makes no sense is an error, because it would mean training on the
// wrong samples.
func ShardFromEnv() (Shard, error) {
	launchers := [][2]string{
		{"RANK", "WORLD_SIZE"},
		{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
		{"SLURM_PROCID", "SLURM_NTASKS"},
		{"PMI_RANK", "PMI_SIZE"},
		{"JOB_COMPLETION_INDEX", "WORLD_SIZE"},
	}
	for _, l := range launchers {
		if _, ok := os.LookupEnv(l[0]); !ok {
			continue
		}
		index, err1 := strconv.Atoi(os.Getenv(l[0]))
		count, err2 := strconv.Atoi(os.Getenv(l[1]))
		if err1 != nil || err2 != nil || index < 0 || index >= count {
			return Shard{}, fmt.Errorf("dataloader: ShardFromEnv: %s is %q and %s is %q; the second must be the number of processes, the first 0 to one less",
				l[0], os.Getenv(l[0]), l[1], os.Getenv(l[1]))
		}
		return Shard{index, count}, nil
	}
	if size, ok := os.LookupEnv("WORLD_SIZE"); ok && size != "1" {
		return Shard{}, fmt.Errorf("dataloader: ShardFromEnv: WORLD_SIZE is %q but RANK is not set", size)
	}
	return Shard{}, nil
}

// Tail says what happens when an epoch cannot be dealt out evenly.
type Tail int

const (
	// PadTail goes on with the epoch's first samples until all shards have the same number. The default, and
	// right for training in step; in an evaluation the repeated samples would count twice.
	PadTail Tail = iota
	// DropTail leaves out the last samples, fewer than Count, so that all shards have the same number.
	DropTail
	// UnevenTail gives the first shards one more. Every sample comes exactly once: evaluate with this one.
	UnevenTail
)

// A deal hands out the positions from … n-1 of an epoch by stride: the shard with index r of c has
//
//	from+r, from+r+c, from+r+2c, …
//
// and makes batches of size of them. Step k of all shards together is the size×c positions from
// from+k×size×c on. Therefore another c with the same size×c goes on after any step as if nothing had changed.
// Under a BatchSampler the positions are batches, and size is 1.
type deal struct {
	from, n  int
	size     int   // at most n+1
	shard    Shard // Count is at least 1
	tail     Tail
	dropLast bool

	mine, most int // how many positions are this shard's, and the first shard's, which has the most
}

// start returns the deal of the positions from … n-1.
func (d deal) start(from int) deal {
	left := d.n - from
	d.from, d.most = from, ceil(left, d.shard.Count)
	switch d.tail {
	case DropTail:
		d.mine = left / d.shard.Count
	case UnevenTail:
		d.mine = ceil(max(0, left-d.shard.Index), d.shard.Count)
	default:
		d.mine = d.most
	}
	return d
}

// steps is the number of batches that are this shard's.
func (d *deal) steps() int {
	if d.dropLast {
		return d.mine / d.size
	}
	return ceil(d.mine, d.size)
}

// positions appends the positions of this shard's batch at step k, which PadTail may take beyond n.
func (d *deal) positions(dst []int, k int) []int {
	for i := k * d.size; i < min((k+1)*d.size, d.mine); i++ {
		dst = append(dst, d.from+d.shard.Index+i*d.shard.Count)
	}
	return dst
}

// after is the position at which all shards stand when k steps are over. It depends on no shard's Index,
// so the cursor of any rank resumes every rank.
func (d *deal) after(k int) int {
	return min(d.n, d.from+min(k*d.size, d.most)*d.shard.Count)
}
