package recipes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"image"
	"image/png"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"dataloader"
)

// A fleet is a balancer of servers of batches, by pipes instead of sockets, for
// bubbles. A connection leads to the next server that lives.
type fleet struct {
	mu      sync.Mutex
	servers []*pipeServer // nil if it was killed
	dialled int
	closing bool // whether each request has a new connection
}

// A pipeServer is a server, and the listener of its pipes.
type pipeServer struct {
	http.Server
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (s *pipeServer) Accept() (net.Conn, error) {
	select {
	case conn := <-s.conns:
		return conn, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *pipeServer) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s *pipeServer) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// start starts server number i.
func (f *fleet) start(i int, handler http.Handler) {
	s := &pipeServer{conns: make(chan net.Conn), closed: make(chan struct{})}
	s.Handler = handler
	f.mu.Lock()
	defer f.mu.Unlock()
	f.servers = append(f.servers, make([]*pipeServer, max(0, i+1-len(f.servers)))...)
	f.servers[i] = s
	go s.Serve(s)
}

// kill ends server i and its connections, as kill -9 does.
func (f *fleet) kill(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.servers[i] != nil {
		f.servers[i].Server.Close()
		f.servers[i] = nil
	}
}

// dial connects to a server.
func (f *fleet) dial(context.Context, string, string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range f.servers {
		f.dialled++
		if s := f.servers[f.dialled%len(f.servers)]; s != nil {
			client, server := net.Pipe()
			s.conns <- server
			return client, nil
		}
	}
	return nil, syscall.ECONNREFUSED
}

// transport is a client's way to the fleet.
func (f *fleet) transport(workers int) *http.Transport {
	return &http.Transport{
		DialContext: f.dial, MaxIdleConnsPerHost: workers, DisableKeepAlives: f.closing,
	}
}

// startFleet starts servers with these handlers, until the test ends.
func startFleet(t *testing.T, handlers ...http.Handler) *fleet {
	f := new(fleet)
	for i, handler := range handlers {
		f.start(i, handler)
	}
	t.Cleanup(func() {
		for i := range f.servers {
			f.kill(i)
		}
	})
	return f
}

// encodeInts is the encode of a server of integers.
func encodeInts(dst []byte, samples []int) ([]byte, error) {
	list := make([]int64, len(samples))
	for i, x := range samples {
		list[i] = int64(x)
	}
	return appendArray(dst[:0], []int{len(list)}, list)
}

// decodeInts is the decode of its client.
func decodeInts(dst dataloader.Tensor[int64], body []byte) (dataloader.Tensor[int64], error) {
	batch, rest, err := cutArray(dst, body)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes are left", len(rest))
	}
	return batch, err
}

// served runs the loop of a training from a step on until another, and returns
// what it gets.
func (f *fleet) served(
	t *testing.T, tag string, from, to int, opts dataloader.Options,
) (all []string, client *batchClient) {
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	client = newBatchClient("http://fleet/path", tag, opts.Workers, stop)
	transport := f.transport(opts.Workers)
	client.http.Transport = transport
	defer transport.CloseIdleConnections()
	loader, err := servedBatches(ctx, client, decodeInts, opts)
	if err != nil {
		return []string{"error"}, client
	}
	at := loader.At(0, from)
	for batch, err := range loader.Run(ctx, &at) {
		switch {
		case errors.As(err, new(*dataloader.SampleError)):
			equal(t, "an error that may be skipped", errors.Is(err, errServed), true)
			all = append(all, "skipped")
		case err != nil:
			return append(all, "error"), client
		default:
			all = append(all, fmt.Sprint(batch.Data))
			loader.Recycle(batch)
		}
		if from++; from == to {
			break
		}
	}
	equal(t, "the context after a break", ctx.Err(), nil)
	return all, client
}

// serveInts is the handler of a server of integers.
func serveInts(data dataloader.Dataset[int], opts dataloader.Options) http.Handler {
	return http.StripPrefix("/path", must(serveBatches(data, encodeInts, opts, "1", 2)))
}

// TestServed asks fleets in which something goes wrong for the first 12 steps.
// They come as from the loader itself, as soon as can be; or the loop ends; or
// it gets what it may skip.
func TestServed(t *testing.T) {
	opts := dataloader.Options{BatchSize: 2, Shuffle: true, Seed: 1}
	want := []string{}
	for epoch := range 3 {
		for batch := range must(dataloader.New(numbers(7), dataloader.List[int],
			opts)).Epoch(t.Context(), epoch) {
			want = append(want, fmt.Sprint(batch))
		}
	}
	skipping := func(bad ...int) []string {
		list := slices.Clone(want)
		for _, step := range bad {
			list[step] = "skipped"
		}
		return list
	}
	var sound http.Handler // made anew in each bubble
	// once returns a server that answers the first request for a path
	// otherwise.
	once := func(path string, first http.HandlerFunc) http.Handler {
		var asked atomic.Bool
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/path"+path && !asked.Swap(true) {
				first(w, r)
			} else {
				sound.ServeHTTP(w, r)
			}
		})
	}
	cutAfter := func(n int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { sound.ServeHTTP(&breaking{w, n}, r) }
	}
	hang := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	says := func(status int, tag string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Batch-Tag", tag)
			http.Error(w, "a proxy", status)
		}
	}
	type fault struct {
		name  string
		takes time.Duration // -1 if it does not matter
		want  []string
		serve func() []http.Handler
	}
	one := func(name string, takes time.Duration, want []string, serve func() http.Handler) fault {
		return fault{name, takes, want, func() []http.Handler { return []http.Handler{serve()} }}
	}
	first := func(name string, takes time.Duration, path string, answer http.HandlerFunc) fault {
		return one(name, takes, want, func() http.Handler { return once(path, answer) })
	}
	slow := func(i int) time.Duration { return time.Duration(i%3) * time.Second }
	for _, c := range []fault{
		one("one server", 0, want, func() http.Handler { return sound }),
		{"two servers", 0, want, func() []http.Handler { return []http.Handler{sound, sound} }},
		one("slow samples", -1, want, func() http.Handler {
			return serveInts(&probe{n: 7, takes: slow}, opts)
		}),
		first("cut before an array", time.Second, "/batch/5", cutAfter(0)),
		first("cut in an array", time.Second, "/batch/5", cutAfter(130)),
		first("cut in the first", time.Second, "/batch/0", cutAfter(143)),
		first("a request that hangs", time.Minute+time.Second, "/batch/5", hang),
		first("a server that is not ready", time.Second, "/ready", says(503, `"x"`)),
		first("a proxy without a server", time.Second, "/batch/5", says(502, "")),
		first("a proxy that fails itself", time.Second, "/batch/5", says(500, "")),
		first("a page of somebody else", time.Second, "/batch/5", says(200, `"x"`)),
		one("a proxy that makes ETags weak and forgets If-Match", 0, want, func() http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Header.Del("If-Match")
				w.Header().Set("ETag", `W/"of the proxy"`)
				sound.ServeHTTP(w, r)
			})
		}),
		one("a batch that fails for ever", 6*time.Second, skipping(1, 5, 8), func() http.Handler {
			return serveInts(failing(7, 3), opts)
		}),
		one("a proxy that always fails", 45*time.Second, append(want[:5:5], "error"),
			func() http.Handler {
				failing := http.NewServeMux()
				failing.Handle("/", sound)
				failing.HandleFunc("/path/batch/5", says(500, ""))
				return failing
			}),
		{"no server", 45 * time.Second, []string{"error"}, func() []http.Handler { return nil }},
		one("a server that always hangs", 645*time.Second, []string{"error"}, func() http.Handler {
			return http.HandlerFunc(hang)
		}),
		one("a server that is none", 45*time.Second, []string{"error"}, http.NotFoundHandler),
	} {
		runInBubble(t, c.name, func(t *testing.T) {
			sound = serveInts(numbers(7), opts)
			fleet, start := startFleet(t, c.serve()...), time.Now()
			got, _ := fleet.served(t, "", 0, len(want), dataloader.Options{Workers: 3})
			equal(t, "steps", got, c.want)
			if c.takes >= 0 {
				equal(t, "time", time.Since(start), c.takes)
			}
		})
	}
	// one connection, first to a server that fails from step 5 on
	synctest.Test(t, func(t *testing.T) {
		sound = serveInts(numbers(7), opts)
		failing := http.NewServeMux()
		failing.Handle("/", sound)
		failing.HandleFunc("/path/batch/5", says(503, ""))
		fleet := startFleet(t, sound, failing)
		got, _ := fleet.served(t, "", 0, len(want), dataloader.Options{})
		equal(t, "steps with another connection", got, want)
	})
}

// TestServedArrays checks that an array is what Decode reads, that cutArray
// cuts it off again, and that neither takes what is damaged.
func TestServedArrays(t *testing.T) {
	first := must(appendArray(nil, []int{2, 3}, []float32{1, 2}, []float32{3, 4, 5, 6}))
	want := dataloader.Tensor[float32]{Data: []float32{1, 2, 3, 4, 5, 6}, Shape: []int{2, 3}}
	equal[any](t, "decoded", must(dataloader.Decode("npy", first)), want)
	both := must(appendArray(slices.Clone(first), []int{1}, []bool{true}))
	got, rest, err := cutArray(dataloader.Tensor[float32]{}, both)
	equal(t, "error", err, nil)
	equal(t, "the first", got, want)
	equal(t, "the second", rest, both[len(first):])
	equal(t, "where its data are, from a multiple of 64 on", (len(both)-1)%64, 0)
	number := must(appendArray(nil, nil, []int64{7}))
	seven, _, err := cutArray(dataloader.Tensor[int64]{}, number)
	equal(t, "error", err, nil)
	equal(t, "a number", fmt.Sprint(seven), "{[7] []}")
	for n := range first {
		failIf(t, errorOf2(cutArray(got, first[:n])) == nil, "%d bytes are an array", n)
	}
	huge := bytes.Replace(first, []byte("(2,3,)"), []byte("(8,8,8,8,8,8,)"), 1)
	failIf(t, errorOf2(cutArray(got, huge)) == nil, "a shape without data")
	failIf(t, errorOf2(cutArray(dataloader.Tensor[int32]{}, first)) == nil, "floats as integers")
	saysAll(t, errorOf(appendArray(nil, []int{2, 2}, []uint8{1, 2, 3})), "[2 2] does not fit 3")
	failIf(t, errorOf(appendArray(nil, []int{1}, []int{1})) == nil, "elements of no fixed size")
}

// errorOf is the error of a call with two results.
func errorOf[T any](_ T, err error) error { return err }

// errorOf2 is the error of a call with three results.
func errorOf2[T, U any](_ T, _ U, err error) error { return err }

// TestServedTags checks that servers have the same tag only if they have the
// same batches, and that a client whose servers are replaced by others ends its
// loop at once.
func TestServedTags(t *testing.T) {
	tagOf := func(n int, opts dataloader.Options, version string) string {
		w := httptest.NewRecorder()
		handler := must(serveBatches(numbers(n), encodeInts, opts, version, 1))
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/ready", nil))
		return w.Header().Get("Batch-Tag")
	}
	opts := dataloader.Options{BatchSize: 2, Seed: 1, DataVersion: "a"}
	tag := tagOf(10, opts, "1")
	tags := map[string]int{tag: -1, tagOf(9, opts, "1"): -2, tagOf(10, opts, "2"): -3}
	changes := []func(o *dataloader.Options){
		func(o *dataloader.Options) { o.BatchSize = 5 },
		func(o *dataloader.Options) { o.Seed = 2 },
		func(o *dataloader.Options) { o.DataVersion = "b" },
		func(o *dataloader.Options) { o.DropLast = true },
		func(o *dataloader.Options) { o.Shuffle = true },
		func(o *dataloader.Options) { o.Sampler = dataloader.Random(10, 2) },
		func(o *dataloader.Options) { o.Sampler = dataloader.Random(10, 3) },
		func(o *dataloader.Options) {
			o.BatchSize, o.BatchSampler = 0, dataloader.Batches(dataloader.Random(10, 2), 2, false)
		},
		func(o *dataloader.Options) { o.Rank = dataloader.Rank{Index: 0, Count: 2} },
		func(o *dataloader.Options) { o.Rank = dataloader.Rank{Index: 1, Count: 2} },
		func(o *dataloader.Options) { o.Tail = dataloader.UnevenTail },
	}
	for i, change := range changes {
		o := opts
		change(&o)
		tags[tagOf(10, o, "1")] = i
	}
	equal(t, "different tags", len(tags), 3+len(changes))
	opts.Workers, opts.Prefetch = 2, 3
	equal(t, "the tag with workers", tagOf(10, opts, "1"), tag)
	for _, o := range []dataloader.Options{{OnError: func(*dataloader.SampleError) error {
		return nil
	}}, {Unordered: true, Workers: 2}} {
		saysAll(t, errorOf(serveBatches(numbers(10), encodeInts, o, "1", 1)), "neither OnError")
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		fleet := startFleet(t, serveInts(numbers(10), dataloader.Options{}))
		got, client := fleet.served(t, "", 0, 3, dataloader.Options{})
		fleet.kill(0)
		fleet.start(0, serveInts(numbers(10), dataloader.Options{Seed: 1}))
		resumed, _ := fleet.served(t, client.tag, 3, 6, dataloader.Options{})
		fleet.start(1, serveInts(numbers(10), dataloader.Options{}))
		fleet.closing = true
		mixed, _ := fleet.served(t, "", 3, 6, dataloader.Options{Workers: 3})
		equal(t, "the last step from servers of two orders", mixed[len(mixed)-1], "error")
		equal(t, "steps", append(got, resumed...), []string{"[0]", "[1]", "[2]", "error"})
		equal(t, "time", time.Since(start), 0)
	})
}

// TestServedRanks checks that ranks get the steps in turn.
func TestServedRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := startFleet(t, serveInts(numbers(100), dataloader.Options{}))
		for rank := range 3 {
			got, _ := fleet.served(t, "", 10, 12,
				dataloader.Options{Workers: 2, Rank: dataloader.Rank{Index: rank, Count: 3}})
			equal(t, "steps", got, []string{fmt.Sprint([]int{30 + rank}),
				fmt.Sprint([]int{33 + rank})})
		}
	})
}

// TestServeBatches asks a server itself, by one connection after the other.
func TestServeBatches(t *testing.T) {
	// ask writes a request to a new connection, and returns the response.
	ask := func(f *fleet, path string) (net.Conn, *http.Response) {
		conn := must(f.dial(t.Context(), "", ""))
		must(fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path))
		return conn, must(http.ReadResponse(bufio.NewReader(conn), nil))
	}
	status := func(f *fleet, path string) int {
		conn, resp := ask(f, path)
		must(io.Copy(io.Discard, resp.Body))
		conn.Close()
		failIf(t, resp.ContentLength < 1, "%s: the length is %d", path, resp.ContentLength)
		return resp.StatusCode
	}
	var fresh, active atomic.Int64 // batches that were built in no memory, and requests under way
	encode := func(dst []byte, samples []int) ([]byte, error) {
		if dst == nil {
			fresh.Add(1)
		}
		return append(dst[:0], make([]byte, 100_000)...), nil
	}
	row := func(name string, data dataloader.Dataset[int], atOnce int,
		test func(t *testing.T, f *fleet)) {
		runInBubble(t, name, func(t *testing.T) {
			fresh.Store(0)
			handler := must(serveBatches(data, encode, dataloader.Options{}, "1", atOnce))
			test(t, startFleet(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				active.Add(1)
				defer active.Add(-1)
				handler.ServeHTTP(w, r)
			})))
		})
	}
	row("statuses", failing(3, 2), 1, func(t *testing.T, f *fleet) {
		for path, want := range map[string]int{
			"/ready": 200, "/batch/0": 200, "/batch/4": 200, "/batch/2": 500, "/batch/5": 500,
			"/batch/-1": 400, "/batch/x": 400, "/batch/1.0": 400,
			"/batch/99999999999999999999": 400,
			"/batch/":                     404, "/": 404, fmt.Sprint("/batch/", math.MaxInt-1): 200,
		} {
			equal(t, path, status(f, path), want)
		}
	})
	row("no samples", numbers(0), 1, func(t *testing.T, f *fleet) {
		equal(t, "ready", status(f, "/ready"), 200)
		equal(t, "batch", status(f, "/batch/0"), 404)
	})
	// A minute after the load the deaf client has lost its place, and memory.
	slow := func(int) time.Duration { return 30 * time.Second }
	row("a client that reads nothing", &probe{n: 9, takes: slow}, 1, func(t *testing.T, f *fleet) {
		start := time.Now()
		deaf, _ := ask(f, "/batch/0")
		equal(t, "another", status(f, "/batch/1"), 200)
		equal(t, "time", time.Since(start), 120*time.Second)
		_, err := io.Copy(io.Discard, deaf)
		equal(t, "the connection's end", err, nil)
		equal(t, "one more", status(f, "/batch/2"), 200)
		equal(t, "batches in new memory", fresh.Load(), 2)
	})
	row("clients that go away", &probe{n: 9, takes: slow}, 1, func(t *testing.T, f *fleet) {
		start := time.Now()
		var conns []net.Conn
		for path := range strings.FieldsSeq("/batch/0 /batch/1 /batch/2") { // one loads, two wait
			conns = append(conns, must(f.dial(t.Context(), "", "")))
			must(fmt.Fprintf(conns[len(conns)-1], "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path))
			synctest.Wait()
		}
		for left := 2; left >= 0; left-- {
			conns[left].Close()
			synctest.Wait()
			equal(t, "requests under way", int(active.Load()), left)
		}
		equal(t, "time", time.Since(start), 0)
	})
	row("two at once", &probe{n: 9, takes: slow}, 2, func(t *testing.T, f *fleet) {
		start := time.Now()
		var all sync.WaitGroup
		for k := range 6 {
			all.Go(func() { equal(t, "status", status(f, fmt.Sprint("/batch/", k)), 200) })
		}
		all.Wait()
		equal(t, "time", time.Since(start), 90*time.Second)
		failIf(t, fresh.Load() > 2, "%d batches in new memory, want at most 2", fresh.Load())
	})
	row("a connection with pauses", numbers(9), 1, func(t *testing.T, f *fleet) {
		client := http.Client{Transport: f.transport(1)}
		defer client.CloseIdleConnections()
		for _, path := range []string{"ready", "batch/0", "batch/x", "batch/1", "ready"} {
			resp := must(client.Get("http://fleet/" + path))
			_, err := io.Copy(io.Discard, resp.Body)
			equal(t, path, err, nil)
			resp.Body.Close()
			time.Sleep(2 * time.Minute) // longer than a response has
		}
		equal(t, "connections", f.dialled, 1)
	})
}

// TestServeUntil checks that a server that is told to end answers the requests
// under way, if they end within 20 seconds, and takes no others.
func TestServeUntil(t *testing.T) {
	for _, takes := range []time.Duration{10 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			data := &probe{n: 9, takes: func(int) time.Duration { return takes }}
			s := &pipeServer{conns: make(chan net.Conn), closed: make(chan struct{})}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- serveUntil(ctx, s, serveInts(data, dataloader.Options{})) }()
			conn, server := net.Pipe()
			s.conns <- server
			must(io.WriteString(conn, "GET /path/batch/1 HTTP/1.1\r\nHost: a\r\n\r\n"))
			synctest.Wait()
			stop()
			start := time.Now()
			_, failed := http.ReadResponse(bufio.NewReader(conn), nil)
			equal(t, "whether the request fails", failed != nil, takes > 20*time.Second)
			conn.Close()
			late := errors.Is(<-ended, context.DeadlineExceeded)
			equal(t, "whether time was over", late, failed != nil)
			failIf(t, time.Since(start) > 21*time.Second, "it takes %v", time.Since(start))
			_, open := <-s.closed
			equal(t, "whether the listener is open", open, false)
		})
	}
}

// TestServedTraining trains a model on digits that are served: by one server
// without interruption, and by two behind a balancer. Of these one is killed
// between two batches, both are killed within a batch, and one starts again;
// and the training itself is killed, twice, and resumes from its checkpoint
// with other workers. The weights are the same, and those of a training that
// loads the digits itself.
func TestServedTraining(t *testing.T) {
	archive := digits("train")
	files, _, err := dataloader.Folder(archive, "*/*.png")
	equal(t, "digits", err, nil)
	type digit = dataloader.Pair[dataloader.Tensor[float32], int]
	var decoded dataloader.Slice[digit]
	for i := range files.Len() {
		file := must(files.Get(t.Context(), i))
		pixels := make([]float32, 16*16)
		for j, p := range must(png.Decode(must(archive.Open(file.First)))).(*image.Gray).Pix {
			pixels[j] = float32(p) / 255
		}
		decoded = append(decoded, digit{First: dataloader.Tensor[float32]{Data: pixels,
			Shape: []int{16, 16}}, Second: file.Second})
	}
	shifted := dataloader.Transform(decoded, func(ctx context.Context, d digit) (digit, error) {
		k := dataloader.Rand(ctx).IntN(3)
		d.First.Data = slices.Concat(d.First.Data[k:], d.First.Data[:k])
		return d, nil
	})
	encode := func(dst []byte, samples []digit) ([]byte, error) {
		pixels, labels := [][]float32{}, []int64{}
		for _, s := range samples {
			pixels = append(pixels, s.First.Data)
			labels = append(labels, int64(s.Second))
		}
		dst, err1 := appendArray(dst[:0], []int{len(samples), 16, 16}, pixels...)
		dst, err2 := appendArray(dst, []int{len(samples)}, labels)
		return dst, errors.Join(err1, err2)
	}
	type batch = dataloader.Pair[dataloader.Tensor[float32], dataloader.Tensor[int64]]
	decode := func(dst batch, body []byte) (_ batch, err error) {
		if dst.First, body, err = cutArray(dst.First, body); err == nil {
			dst.Second, _, err = cutArray(dst.Second, body)
		}
		return dst, err
	}
	opts := dataloader.Options{BatchSize: 32, Shuffle: true, Seed: 1}
	const last = 4 * 18 // epochs of 18 steps
	type checkpoint struct {
		Model digitModel
		Step  int
		Tag   string
	}
	// train resumes a checkpoint in a bubble and returns the next one, at a
	// step that something happens at, or at the end. before is called before
	// each step.
	train := func(
		t *testing.T, f *fleet, saved []byte, workers, until int, before func(step int),
	) []byte {
		var c checkpoint
		equal(t, "checkpoint", json.Unmarshal(saved, &c), nil)
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		client := newBatchClient("http://fleet", c.Tag, workers, stop)
		transport := f.transport(workers)
		client.http.Transport = transport
		defer transport.CloseIdleConnections()
		loader := must(servedBatches(ctx, client, decode, dataloader.Options{Workers: workers}))
		equal(t, "steps in an epoch", client.steps, 18)
		c.Tag = client.tag
		at := loader.At(0, c.Step)
		for batch, err := range loader.Run(ctx, &at) {
			failIf(t, err != nil, "step %d: %v", c.Step, err)
			labels := []int{}
			for _, label := range batch.Second.Data {
				labels = append(labels, int(label))
			}
			c.Model.learn(batch.First, labels)
			loader.Recycle(batch)
			if c.Step++; c.Step == until {
				break
			}
			before(c.Step)
		}
		return must(json.Marshal(c))
	}
	var whole, again []byte
	synctest.Test(t, func(t *testing.T) {
		server := must(serveBatches(shifted, encode, opts, "1", 2))
		whole = train(t, startFleet(t, server), []byte("{}"), 2, last, func(int) {})
	})
	synctest.Test(t, func(t *testing.T) {
		var f *fleet
		var within atomic.Int64 // requests for step 30, in which both servers are killed
		var serve func() http.Handler
		serve = func() http.Handler {
			server := must(serveBatches(shifted, encode, opts, "1", 2))
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/30") && within.Add(1) == 1 {
					w = &dying{w, func() { f.kill(0); f.kill(1) }}
					time.AfterFunc(20*time.Second, func() { f.start(0, serve()) })
				}
				server.ServeHTTP(w, r)
			})
		}
		f = startFleet(t, serve(), serve())
		again = train(t, f, []byte("{}"), 3, 9, func(int) {})
		again = train(t, f, again, 0, 50, func(step int) {
			if step == 20 {
				f.kill(1)
				f.start(1, serve())
			}
		})
		again = train(t, f, again, 4, last, func(int) {})
		equal(t, "requests in which servers were killed", within.Load() > 1, true)
	})
	var own digitModel
	loader := must(dataloader.New(shifted, dataloader.CollatePair(dataloader.Stack[float32],
		dataloader.List[int]), opts))
	for step := range last {
		batch := must(loader.Batch(t.Context(), step/18, step%18))
		own.learn(batch.First, batch.Second)
	}
	equal(t, "whether the weights are the same", bytes.Equal(again, whole), true)
	var c checkpoint
	equal(t, "checkpoint", json.Unmarshal(whole, &c), nil)
	equal(t, "whether they are the loader's", c.Model == own, true)
	equal(t, "steps", c.Step, last)
}

// A digitModel is a softmax regression: a weight for each digit and pixel.
type digitModel [10][16 * 16]float64

// learn takes a step down the gradient for each image of a batch.
func (m *digitModel) learn(images dataloader.Tensor[float32], labels []int) {
	for i, label := range labels {
		pixels := images.Data[i*16*16 : (i+1)*16*16]
		var p [10]float64
		sum := 0.0
		for d := range p {
			for j, x := range pixels {
				p[d] += m[d][j] * float64(x)
			}
			p[d] = math.Exp(p[d])
			sum += p[d]
		}
		for d := range p {
			gradient := p[d] / sum
			if d == label {
				gradient--
			}
			for j, x := range pixels {
				m[d][j] -= 0.01 * gradient * float64(x)
			}
		}
	}
}

// A dying answer writes half of what it is given, and then its server dies.
type dying struct {
	http.ResponseWriter
	die func()
}

func (d *dying) Write(p []byte) (int, error) {
	d.ResponseWriter.Write(p[:len(p)/2])
	d.ResponseWriter.(http.Flusher).Flush()
	d.die()
	return 0, net.ErrClosed
}

// A breaking answer ends its connection when it has written so many bytes.
type breaking struct {
	http.ResponseWriter
	left int
}

func (b *breaking) Write(p []byte) (int, error) {
	if b.left < len(p) {
		b.ResponseWriter.Write(p[:b.left])
		b.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	b.left -= len(p)
	return b.ResponseWriter.Write(p)
}

// runInBubble runs a row of a table in a bubble of testing/synctest.
func runInBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

var python = flag.String("python", "", "an interpreter that has NumPy, for TestServedPython")

// TestServedPython runs served.py, with torch if it is installed, on a server
// that answers every step once in vain: with a response that is cut, an error,
// or a connection that ends.
func TestServedPython(t *testing.T) {
	if *python == "" {
		t.Skip("it needs an interpreter that has NumPy, as -python names it; .ci/run does")
	}
	data := dataloader.Func(50, func(_ context.Context, i int) (uint8, error) {
		return uint8(i), nil
	})
	encode := func(dst []byte, samples []uint8) ([]byte, error) {
		n := len(samples)
		dst, err1 := appendArray(dst[:0], []int{n}, samples) // the next array has to be aligned
		last := []float32{float32(samples[0])}
		dst, err2 := appendArray(dst, []int{n, 2, 3}, make([]float32, 6*n-1), last)
		dst, err3 := appendArray(dst, []int{0, n}, []int64{})
		return dst, errors.Join(err1, err2, err3)
	}
	sound := must(serveBatches(data, encode, dataloader.Options{BatchSize: 7, Shuffle: true}, "1",
		2))
	var asked sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		step, _ := strconv.Atoi(path.Base(r.URL.Path))
		count, _ := asked.LoadOrStore(step, new(atomic.Int64))
		switch again := count.(*atomic.Int64).Add(1)%2 == 0; {
		case again || path.Base(r.URL.Path) == "ready":
		case step%3 == 0:
			w = &breaking{w, 150}
		case step%3 == 1:
			w.Header().Set("Batch-Tag", r.Header.Get("Batch-Tag"))
			http.Error(w, "once", http.StatusInternalServerError)
			return
		default:
			panic(http.ErrAbortHandler)
		}
		http.StripPrefix("/path", sound).ServeHTTP(w, r)
	}))
	defer server.Close()
	want := map[string]string{}
	loader := must(dataloader.New(data, dataloader.List[uint8],
		dataloader.Options{BatchSize: 7, Shuffle: true}))
	for step := 3; step < 13; step++ {
		batch := must(loader.Batch(t.Context(), step/8, step%8))
		n := len(batch)
		floats := make([]byte, 24*n)
		binary.LittleEndian.PutUint32(floats[24*n-4:], math.Float32bits(float32(batch[0])))
		want[fmt.Sprint(step)] = fmt.Sprintf(
			"uint8 (%d,) %08x float32 (%d, 2, 3) %08x int64 (0, %d) 00000000",
			n, crc32.ChecksumIEEE(batch), n, crc32.ChecksumIEEE(floats), n)
	}
	cmd := exec.Command(*python, "served.py", server.URL+"/path", "3", "13", "0.001")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	failIf(t, err != nil, "%v: %v\n%s", cmd, err, &stderr)
	ways := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 3)
		equal(t, line, words[2], want[words[1]])
		ways[words[0]] = append(ways[words[0]], words[1])
	}
	for way, steps := range ways {
		t.Log("by", way)
		equal(t, "steps", steps, strings.Fields("3 4 5 6 7 8 9 10 11 12"))
	}
	equal(t, "by threads", ways["threads"] != nil, true)
}
