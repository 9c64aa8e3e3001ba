package dataloader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
)

// numbers is the data set 0, 1, …, n-1.
func numbers(n int) Dataset[int] {
	return Func(n, func(_ context.Context, i int) (int, error) { return i, nil })
}

// must returns v of a call that cannot fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// newLoader makes a loader of lists.
func newLoader[T any](t testing.TB, data Dataset[T], opts Options) *DataLoader[[]T] {
	t.Helper()
	l, err := New(data, List[T], opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// collect reads a sequence in which nothing may fail.
func collect[T any](t testing.TB, seq iter.Seq2[T, error]) []T {
	t.Helper()
	all := []T{}
	for v, err := range seq {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

// outcomes reads a sequence and writes down values and errors, in words; of a stream's failed item only the cause.
func outcomes[T any](seq iter.Seq2[T, error]) []string {
	all := []string{}
	for v, err := range seq {
		if failed := (*SampleError)(nil); errors.As(err, &failed) && failed.Batch < 0 {
			err = failed.Err
		}
		if err != nil {
			text, _, _ := strings.Cut(err.Error(), "\n")
			all = append(all, "error "+text)
		} else {
			all = append(all, fmt.Sprint(v))
		}
	}
	return all
}

// equal fails the test if got is not want, in words.
func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Fatalf("%s:\n got %s\nwant %s", what, g, w)
	}
}

// throughJSON is a cursor that was saved and loaded.
func throughJSON(t testing.TB, c Cursor) Cursor {
	t.Helper()
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var back Cursor
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	return back
}

// saysAll checks that err is there and names everything that it should.
func saysAll(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

// mustPanic checks that f panics with a message that says everything it should.
func mustPanic(t testing.TB, f func(), parts ...string) {
	t.Helper()
	defer func() {
		t.Helper()
		saysAll(t, fmt.Errorf("%v", recover()), parts...)
	}()
	f()
}
