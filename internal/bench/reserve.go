package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tollgate/admission"
	admissionredis "tollgate/admission/redis"
	"tollgate/internal/loadclient"
	"tollgate/tenancy"
	tenancypg "tollgate/tenancy/postgres"
)

const (
	benchModel    = "bench-model"
	benchEndpoint = "chat"
	startTimeout  = time.Minute
)

// reserveInProcess calls the store directly, from 1, 16 and 64 goroutines.
func reserveInProcess(ctx context.Context, opts Options) (figures []Figure, err error) {
	s, err := newSite(ctx, opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	list, err := tenancypg.New(s.scratch.Pool).ListTenants(ctx)
	if err != nil {
		return nil, err
	}
	platform, err := tenancypg.New(s.scratch.Pool).GetPlatform(ctx)
	if err != nil {
		return nil, err
	}
	store, err := admissionredis.New(admissionredis.Options{
		Client: s.redis, Prefix: s.cfg.Redis.Prefix, Shards: s.cfg.Redis.Shards, MaxBacklog: 1 << 40, Logger: opts.Log,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Stop(context.WithoutCancel(ctx))) }()
	for shard := range s.cfg.Redis.Shards {
		if _, err := store.Seed(ctx, shard, "bench", nil); err != nil {
			return nil, err
		}
	}
	for _, n := range connections {
		rate, err := reserveLoop(ctx, store, list, platform, n, opts.Each)
		if err != nil {
			return nil, err
		}
		figures = append(figures, Figure{Name: fmt.Sprintf("reserve_process_%d_rps", n), Value: rate, Unit: "reserves/s"})
	}
	return figures, nil
}

func reserveLoop(ctx context.Context, store *admissionredis.Store, list []tenancy.Tenant, platform *tenancy.Platform, callers int, d time.Duration) (float64, error) {
	limits := make([][]admission.Constraint, len(list))
	for i := range list {
		limits[i] = admission.Constraints(&list[i], nil, benchEndpoint, benchModel, platform)
	}
	figures := admission.Figures{InputTokens: 1000, MaxOutputTokens: 200}
	walk := shares()
	var done atomic.Int64
	var wg sync.WaitGroup
	failed := make(chan error, callers)
	began := time.Now()
	for caller := range callers {
		wg.Go(func() {
			for i := caller; time.Since(began) < d; i += callers {
				t := walk[i%len(walk)]
				worst, err := admission.Hold(figures, &list[t], benchModel, platform, limits[t])
				if err == nil {
					_, err = store.Reserve(ctx, &admission.ReserveRequest{
						Tenant: &list[t], Key: &tenancy.Key{ID: "tgk_bench"}, RequestID: "p-" + strconv.Itoa(callers) + "-" + strconv.Itoa(i),
						Endpoint: benchEndpoint, Model: benchModel, Hold: worst.Hold, WeightMilli: worst.WeightMilli, ImageTokens: worst.ImageTokens,
						BodyHash: admission.BodyHash(benchEndpoint, benchModel, figures), TTL: time.Hour, MaxHold: time.Hour, Limits: limits[t], Author: "bench",
					})
				}
				if err != nil {
					failed <- err
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		return 0, err
	default:
	}
	return float64(done.Load()) / time.Since(began).Seconds(), nil
}

// reserveHTTP measures a gateway in a process of its own: reserves at 1, 16
// and 64 connections beside a bare HTTP server, an open loop at 2,000/s, the
// usage query, and how the gateway's memory grew over all of it.
func reserveHTTP(ctx context.Context, opts Options) (figures []Figure, err error) {
	s, err := newSite(ctx, opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	gw, err := s.startGateway(ctx, opts)
	if err != nil {
		return nil, err
	}
	defer gw.stop()

	load := loader{addr: gw.addr, secrets: s.secrets}
	if _, err := load.reserves(ctx, 16, 0, time.Second, "warm"); err != nil {
		return nil, err
	}
	before, err := gw.rss()
	if err != nil {
		return nil, err
	}
	bare, err := bareServer(ctx, opts.Each)
	if err != nil {
		return nil, err
	}
	for _, n := range connections {
		res, err := load.reserves(ctx, n, 0, opts.Each, "c"+strconv.Itoa(n))
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("reserve_http_%d_", n)
		rps := Figure{Name: name + "rps", Value: res.PerSecond(), Unit: "reserves/s"}
		if n == connections[len(connections)-1] {
			rps = rps.against(bare, "an HTTP server that only answers, same client and connections")
		}
		figures = append(figures, rps, millis(name+"p50_ms", res, 0.5), millis(name+"p99_ms", res, 0.99))
	}
	res, err := load.reserves(ctx, 64, 2000, 2*opts.Each, "open")
	if err != nil {
		return nil, err
	}
	figures = append(figures, millis("reserve_http_2000rps_p50_ms", res, 0.5), millis("reserve_http_2000rps_p99_ms", res, 0.99))
	if res, err = load.usage(ctx, 500, opts.Each); err != nil {
		return nil, err
	}
	figures = append(figures, millis("usage_p50_ms", res, 0.5), millis("usage_p99_ms", res, 0.99))
	after, err := gw.rss()
	if err != nil {
		return nil, err
	}
	return append(figures, Figure{Name: "gateway_rss_mib", Value: after, Unit: "MiB"}.against(before, "after one second of warm-up")), nil
}

func millis(name string, res loadclient.Result, q float64) Figure {
	return Figure{Name: name, Value: float64(res.Latency.Quantile(q)) / float64(time.Millisecond), Unit: "ms"}
}

// loader makes requests.
type loader struct {
	addr    string
	secrets []string
}

func (l loader) reserves(ctx context.Context, conns, rate int, d time.Duration, run string) (loadclient.Result, error) {
	heads := make([][]byte, len(l.secrets))
	for i, secret := range l.secrets {
		heads[i] = []byte("POST /v1/reservations HTTP/1.1\r\nHost: " + l.addr + "\r\nContent-Type: application/json\r\nAuthorization: Bearer " + secret + "\r\nContent-Length: ")
	}
	walk := shares()
	counters := make([]int, conns)
	next := func(conn int, buf []byte) []byte {
		counters[conn]++
		n := counters[conn]
		var body [256]byte
		b := append(body[:0], `{"request_id":"`...)
		b = append(b, run...)
		b = append(b, '-')
		b = strconv.AppendInt(b, int64(conn), 10)
		b = append(b, '-')
		b = strconv.AppendInt(b, int64(n), 10)
		b = append(b, `","endpoint":"`+benchEndpoint+`","model":"`+benchModel+`","input_tokens":1000,"max_output_tokens":200}`...)
		buf = append(buf, heads[walk[(conn*len(walk)/conns+n)%len(walk)]%len(heads)]...)
		buf = strconv.AppendInt(buf, int64(len(b)), 10)
		buf = append(buf, "\r\n\r\n"...)
		return append(buf, b...)
	}
	return l.run(ctx, loadclient.Options{Addr: l.addr, Conns: conns, Rate: rate, Duration: d, Next: next}, http.StatusCreated)
}

func (l loader) usage(ctx context.Context, rate int, d time.Duration) (loadclient.Result, error) {
	requests := make([][]byte, len(l.secrets))
	for i, secret := range l.secrets {
		requests[i] = loadclient.AppendRequest(nil, http.MethodGet, "/v1/quota/usage", l.addr, "Bearer "+secret, nil)
	}
	var n int
	next := func(_ int, buf []byte) []byte { // an open loop calls it from one goroutine
		n++
		return append(buf, requests[n%len(requests)]...)
	}
	return l.run(ctx, loadclient.Options{Addr: l.addr, Conns: 16, Rate: rate, Duration: d, Next: next}, http.StatusOK)
}

// run fails when anything but the wanted answer came.
func (l loader) run(ctx context.Context, opts loadclient.Options, want int) (loadclient.Result, error) {
	res, err := loadclient.Run(ctx, opts)
	if err != nil {
		return res, err
	}
	if res.Errors > 0 || res.ByStatus[want] != res.Answers() || res.Answers() == 0 {
		return res, fmt.Errorf("want only answers %d, got %v and %d errors (last: %w)", want, res.ByStatus, res.Errors, res.LastErr)
	}
	return res, nil
}

// bareServer is what HTTP itself costs here: a server in a process of its own
// that reads the body and answers the same number of bytes.
func bareServer(ctx context.Context, d time.Duration) (float64, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("listen: %w", err)
	}
	answer := []byte(strings.Repeat("x", 900))
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body [1024]byte
		for {
			if _, err := r.Body.Read(body[:]); err != nil {
				break
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(answer) // the client counts what it gets
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // ends with Close
	}()
	defer func() {
		_ = server.Close() // Serve has the listener's error
		<-done
	}()
	load := loader{addr: l.Addr().String(), secrets: []string{"tgk_0000000000000000.0000000000000000000000000000000000000000000"}}
	res, err := load.reserves(ctx, connections[len(connections)-1], 0, d, "bare")
	if err != nil {
		return 0, err
	}
	return res.PerSecond(), nil
}

// gateway is a gateway in a process of its own.
type gateway struct {
	addr, admin string

	cmd  *exec.Cmd
	done chan struct{}
}

// startGateway starts a gateway; settings are further FIELD=VALUE pairs.
func (s *site) startGateway(ctx context.Context, opts Options, settings ...string) (*gateway, error) {
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	admin, err := freeAddress()
	if err != nil {
		return nil, err
	}
	g := &gateway{addr: addr, admin: admin, done: make(chan struct{})}
	args := []string{
		"--set", "listen=" + addr, "--set", "admin_listen=" + admin,
		"--set", "redis.prefix=" + s.cfg.Redis.Prefix, "--set", "kafka.topic_prefix=" + s.cfg.Kafka.TopicPrefix,
		"--set", "relay.enabled_in_gateway=false", "--set", "admission.outbox_max_records=1000000000",
		"--set", "log.level=error",
	}
	for _, setting := range settings {
		args = append(args, "--set", setting)
	}
	g.cmd = exec.Command(opts.Binary, append(args, "gateway")...)
	g.cmd.Env = append(os.Environ(), "TOLLGATE_POSTGRES_URL="+s.scratch.URL)
	g.cmd.Stderr = os.Stderr
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a gateway: %w", err)
	}
	go func() {
		_ = g.cmd.Wait()
		close(g.done)
	}()
	if err := g.await(ctx, s.secrets); err != nil {
		g.stop()
		return nil, err
	}
	return g, nil
}

// await waits until the gateway is ready, which it is once its state is
// rebuilt, and knows every tenant.
func (g *gateway) await(ctx context.Context, secrets []string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := g.awaitOK(ctx, "http://"+g.admin+"/readyz", ""); err != nil {
		return err
	}
	for _, secret := range secrets {
		if err := g.awaitOK(ctx, "http://"+g.addr+"/v1/quota/usage", secret); err != nil {
			return err
		}
	}
	return nil
}

func (g *gateway) awaitOK(ctx context.Context, url, secret string) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		if secret != "" {
			req.Header.Set("Authorization", "Bearer "+secret)
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-g.done:
			return errors.New("the gateway ended")
		case <-ctx.Done():
			return fmt.Errorf("the gateway did not come up in %s", startTimeout)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (g *gateway) stop() {
	_ = g.cmd.Process.Signal(os.Interrupt) // it may have ended by itself
	select {
	case <-g.done:
	case <-time.After(15 * time.Second):
		_ = g.cmd.Process.Kill()
		<-g.done
	}
}

// rss is the gateway's resident memory in MiB.
func (g *gateway) rss() (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("read the gateway's memory: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if kib, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kib), "kB")), 64)
			return n / 1024, err
		}
	}
	return 0, errors.New("the gateway's memory is not in /proc")
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
