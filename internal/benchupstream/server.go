// Package benchupstream is a model server that does next to nothing, for
// measuring what stands in front of one.
//
// It answers POST …/chat/completions as OpenAI does: with one fixed answer that
// states its usage, or, where the body asks for a stream, with chunks at a fixed
// pace. How slow it is stands in the path, so that one server serves every load:
//
//	/delay-20ms/v1/chat/completions             an answer after 20 ms
//	/every-2ms/chunks-40/v1/chat/completions    40 chunks, 2 ms apart
//
// The first chunk leaves after the delay. GET /stats is what it has done so far.
//
// It shares its machine with what is measured, so it is one thread that asks the
// kernel which connections have news, as the load client is. A client that does
// not read is cut. It needs Linux.
package benchupstream

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Stats is what the server has done.
type Stats struct {
	Answers int64 `json:"answers"` // plain ones
	Streams int64 `json:"streams"` // that came to their end
	Chunks  int64 `json:"chunks"`  // with content
	// Cut is how many answers and streams lost their client before their end.
	Cut int64 `json:"cut"`
	// Refused is how many requests were not understood.
	Refused int64 `json:"refused"`
}

// Server is the model server.
type Server struct {
	listener *os.File // keeps the descriptor below open
	fd       int32    // asked for once: os.File.Fd makes it block
	addr     string
	poll     int
	conns    map[int32]*conn
	due      queue
	events   [128]unix.EpollEvent

	answers, streams, chunks, cut, refused atomic.Int64
}

// conn is one connection. It serves one request at a time.
type conn struct {
	fd    int32 // -1: closed
	in    []byte
	at    time.Time // when the next piece is due; zero: none
	order order
	sent  int // chunks of the stream
}

// New listens on addr.
func New(addr string) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("model server for benchmarks: %w", err)
	}
	defer func() { _ = l.Close() }() // the copy below stays
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return nil, fmt.Errorf("model server for benchmarks: %w", err)
	}
	s := &Server{listener: file, addr: l.Addr().String(), conns: make(map[int32]*conn)}
	if s.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		_ = file.Close()
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	s.fd = int32(file.Fd())
	if err := errors.Join(unix.SetNonblock(int(s.fd), true), s.watch(int(s.fd), unix.EPOLLIN)); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// Addr is the address that it listens on.
func (s *Server) Addr() string { return s.addr }

// Stats is what it has done so far.
func (s *Server) Stats() Stats {
	return Stats{
		Answers: s.answers.Load(), Streams: s.streams.Load(), Chunks: s.chunks.Load(),
		Cut: s.cut.Load(), Refused: s.refused.Load(),
	}
}

func (s *Server) watch(fd int, events uint32) error {
	return os.NewSyscallError("epoll_ctl",
		unix.EpollCtl(s.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}))
}

// lookEvery is how often the loop looks at its context.
const lookEvery = 50 * time.Millisecond

// Serve serves until ctx ends, and closes everything. It is called once.
func (s *Server) Serve(ctx context.Context) error {
	// The kernel may end a thread's sleep 50 µs late, which would be every chunk's
	// delay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1000, 0, 0, 0)
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }() // the default again
	defer s.close()

	for ctx.Err() == nil {
		wait := lookEvery
		if len(s.due) > 0 {
			wait = min(wait, max(time.Until(s.due[0].at), 0))
		}
		n, err := s.await(wait)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("epoll_wait", err)
		}
		for i := range max(n, 0) {
			if fd := s.events[i].Fd; fd == s.fd {
				s.accept()
			} else if c := s.conns[fd]; c != nil {
				s.receive(c)
			}
		}
		for now := time.Now(); len(s.due) > 0 && !s.due[0].at.After(now); {
			if c := heap.Pop(&s.due).(*conn); c.fd >= 0 {
				s.step(c)
			}
		}
	}
	return nil
}

// await waits for news. Epoll's own time-out is in milliseconds, which is too
// coarse where something is due.
func (s *Server) await(wait time.Duration) (int, error) {
	if wait > 0 {
		spec := unix.NsecToTimespec(int64(wait))
		if n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(s.poll), Events: unix.POLLIN}}, &spec, nil); n <= 0 || err != nil {
			return n, err
		}
	}
	return unix.EpollWait(s.poll, s.events[:], 0)
}

func (s *Server) close() {
	for _, c := range s.conns {
		s.drop(c)
	}
	_ = s.listener.Close()
	_ = unix.Close(s.poll)
}

func (s *Server) accept() {
	for {
		fd, _, err := unix.Accept4(int(s.fd), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil { // none is waiting any more
			return
		}
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // as net does; slower without, no more
		if s.watch(fd, unix.EPOLLIN|unix.EPOLLRDHUP) != nil {
			_ = unix.Close(fd)
			continue
		}
		s.conns[int32(fd)] = &conn{fd: int32(fd), in: make([]byte, 0, 4<<10)}
	}
}

func (s *Server) drop(c *conn) {
	if c.fd < 0 {
		return
	}
	if !c.at.IsZero() {
		s.cut.Add(1)
	}
	delete(s.conns, c.fd)
	_ = unix.Close(int(c.fd)) // which also takes it out of epoll
	c.fd = -1
}

// receive takes what a client has sent.
func (s *Server) receive(c *conn) {
	if len(c.in) == cap(c.in) {
		c.in = append(c.in, make([]byte, len(c.in))...)[:len(c.in)]
	}
	n, err := unix.Read(int(c.fd), c.in[len(c.in):cap(c.in)])
	switch {
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
		return
	case err != nil || n == 0:
		s.drop(c)
		return
	}
	c.in = c.in[:len(c.in)+n]
	if c.at.IsZero() {
		s.next(c)
	}
}

// next begins with the next request, if it is whole.
func (s *Server) next(c *conn) {
	size, o, err := readRequest(c.in)
	switch {
	case errors.Is(err, errMore):
		return
	case err != nil:
		s.refused.Add(1)
		s.write(c, refusal(err))
		s.drop(c)
		return
	}
	c.in = c.in[:copy(c.in, c.in[size:])]
	c.order, c.sent = o, 0
	if o.kind == kindStats {
		if s.write(c, s.stats()) {
			s.next(c)
		}
		return
	}
	c.at = time.Now().Add(o.delay)
	if o.delay > 0 {
		heap.Push(&s.due, c)
		return
	}
	s.step(c)
}

// step sends what is due.
func (s *Server) step(c *conn) {
	if c.order.kind == kindAnswer {
		if s.write(c, plain) {
			s.answers.Add(1)
			s.finished(c)
		}
		return
	}
	piece := chunk
	c.sent++
	last := c.sent == c.order.chunks
	if c.sent == 1 || last {
		piece = edge(c.order, c.sent == 1, last)
	}
	if !s.write(c, piece) {
		return
	}
	s.chunks.Add(1)
	if last {
		s.streams.Add(1)
		s.finished(c)
		return
	}
	// From when it was due, so that the pace holds.
	c.at = c.at.Add(c.order.every)
	heap.Push(&s.due, c)
}

func (s *Server) finished(c *conn) {
	c.at = time.Time{}
	if c.order.close {
		s.drop(c)
		return
	}
	s.next(c)
}

// write sends b whole, or drops the connection. What is sent at once is smaller
// than a socket's buffer: a client that does not take it does not read.
func (s *Server) write(c *conn, b []byte) bool {
	if n, err := unix.Write(int(c.fd), b); err == nil && n == len(b) {
		return true
	}
	s.drop(c)
	return false
}

// queue is a heap of connections by when their next piece is due.
type queue []*conn

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(x any) { *q = append(*q, x.(*conn)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return c
}

// Healthy says whether a server answers on addr.
func Healthy(ctx context.Context, addr string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/stats", http.NoBody)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}
