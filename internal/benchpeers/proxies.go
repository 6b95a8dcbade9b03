package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"tollgate/internal/hop"
	"tollgate/internal/loadclient"
)

// proxyPeer is a gateway of model servers.
type proxyPeer struct {
	name string
	// does is what it does of the front door's work.
	does  string
	start func(ctx context.Context, s stage) (*hop.Process, hop.Target, error)
}

// prefix is what the names of its figures begin with.
func (p proxyPeer) prefix() string { return "peer_" + p.name + "_" }

// stage is what a peer is started on.
type stage struct {
	peers    string // where deploy/peers/install puts them
	help     string // what they need to run: deploy/peers
	dir      string // of its own
	addr     string // where it shall listen
	upstream string // the model server's address
	redis    string
}

func (s stage) port() string {
	_, port, _ := net.SplitHostPort(s.addr) // it is our own
	return port
}

// proxyPeers are those that deploy/peers/install knows.
var proxyPeers = []proxyPeer{
	{"nginx", "passes requests on and does nothing else", startNginx},
	{"portkey", "routes by headers, with no limits and no metering, and with help for its streams (deploy/peers/portkey.mjs)", startPortkey},
	{"litellm", "runs 2 workers with one key and counts each model's limits in Redis; its tenants' keys need a database and are not used", startLiteLLM},
	{"bifrost", "", startBifrost},
}

// measureProxies drives every peer with the front door's loads.
func measureProxies(ctx context.Context, o options, note io.Writer) (rows []row, without []notMeasured, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	upstream, err := hop.StartUpstream(ctx, self, "upstream")
	if err != nil {
		return nil, nil, err
	}
	defer upstream.Stop()
	for _, peer := range proxyPeers {
		_, _ = fmt.Fprintf(note, "Measuring %s …\n", peer.name)
		got, missing := measureProxy(ctx, o, peer, upstream.Addr)
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		rows, without = append(rows, got...), append(without, missing...)
	}
	return rows, without, nil
}

// measureProxy starts one peer and drives it. A load that it does not bear is
// named, the others are driven all the same.
func measureProxy(ctx context.Context, o options, peer proxyPeer, upstream string) (rows []row, without []notMeasured) {
	give := func(err error) ([]row, []notMeasured) {
		return rows, append(without, notMeasured{Name: peer.prefix(), Reason: err.Error()})
	}
	if reason, err := os.ReadFile(filepath.Join(o.peers, peer.name+".reason")); err == nil {
		return give(errors.New(strings.TrimSpace(string(reason))))
	}
	dir, err := os.MkdirTemp("", "tollgate-peer-")
	if err != nil {
		return give(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	addr, err := hop.FreeAddress()
	if err != nil {
		return give(err)
	}
	process, target, err := peer.start(ctx, stage{peers: o.peers, help: o.help, dir: dir, addr: addr, upstream: upstream, redis: o.redis})
	if err != nil {
		return give(err)
	}
	defer process.Stop()
	target.Addr, target.Root = addr, process.PID()
	ready := func(ctx context.Context) bool { return target.Send(ctx, hop.Prompt, false, 1) == nil }
	if err := hop.Await(ctx, process.Ended, 2*time.Minute, ready); err != nil {
		return give(fmt.Errorf("%w; the end of its output:\n%s", err, process.Output()))
	}
	for _, load := range hop.Loads {
		figures, err := load.Run(ctx, hop.Direct(upstream), target, hop.Options{Each: o.each, Rounds: o.rounds})
		if err != nil {
			without = append(without, notMeasured{Name: peer.prefix() + load.Name, Reason: err.Error()})
			continue
		}
		for _, f := range figures {
			rows = append(rows, row{Name: peer.prefix() + f.Name, Value: f.Value, Unit: f.Unit})
		}
	}
	return rows, without
}

// passing has requests that name the pace in the path, for hops that keep it,
// with more header lines.
func passing(addr string, header ...string) func(hop.Pace, bool) [][]byte {
	return func(p hop.Pace, stream bool) [][]byte {
		return [][]byte{request(addr, p.Path(), "bench", stream, header...)}
	}
}

// request is one request with more header lines.
func request(addr, path, model string, stream bool, header ...string) []byte {
	plain := loadclient.AppendRequest(nil, http.MethodPost, path, addr, "Bearer sk-bench", hop.Body(model, stream))
	line, rest, _ := strings.Cut(string(plain), "\r\n")
	return []byte(strings.Join(append(append([]string{line}, header...), rest), "\r\n"))
}

const nginxConf = `daemon off;
worker_processes auto;
pid %[1]s/nginx.pid;
error_log stderr error;
events { worker_connections 4096; }
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  keepalive_requests 10000000;
  upstream models { server %[3]s; keepalive 1024; keepalive_requests 10000000; }
  server {
    listen %[2]s;
    location / {
      proxy_pass http://models;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 60s;
    }
  }
}
`

func startNginx(_ context.Context, s stage) (*hop.Process, hop.Target, error) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		program = "/usr/sbin/nginx" // where it is outside of most people's PATH
	}
	file := filepath.Join(s.dir, "nginx.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, nginxConf, s.dir, s.addr, s.upstream), 0o600); err != nil {
		return nil, hop.Target{}, err
	}
	p, err := hop.Start(program, []string{"-c", file, "-p", s.dir, "-e", "stderr"}, nil)
	return p, hop.Target{Requests: passing(s.addr)}, err
}

func startPortkey(_ context.Context, s stage) (*hop.Process, hop.Target, error) {
	program := filepath.Join(s.peers, "portkey/node_modules/@portkey-ai/gateway/build/start-server.js")
	host, _, _ := net.SplitHostPort(s.upstream) // it is our own
	help, err := filepath.Abs(s.help)
	if err != nil {
		return nil, hop.Target{}, err
	}
	p, err := hop.Start("node", []string{"--import", filepath.Join(help, "portkey.mjs"), program, "--headless", "--port=" + s.port()},
		[]string{"NODE_ENV=production", "TRUSTED_CUSTOM_HOSTS=" + host})
	return p, hop.Target{Requests: func(pace hop.Pace, stream bool) [][]byte {
		return [][]byte{request(s.addr, "/v1/chat/completions", "bench", stream,
			"x-portkey-provider: openai", "x-portkey-custom-host: http://"+s.upstream+string(pace)+"/v1")}
	}}, err
}

// litellmConf limits each model out of reach, so that every request is admitted
// and counted.
const litellmConf = `general_settings:
  master_key: sk-bench
router_settings:
  routing_strategy: usage-based-routing-v2
  redis_host: %s
  redis_port: %s
litellm_settings:
  num_retries: 0
  request_timeout: 120
  telemetry: false
model_list:
`

func startLiteLLM(_ context.Context, s stage) (*hop.Process, hop.Target, error) {
	redisHost, redisPort, err := net.SplitHostPort(s.redis)
	if err != nil {
		return nil, hop.Target{}, err
	}
	run := strings.ToLower(rand.Text()[:8]) // its keys in Redis carry the models' names
	conf := fmt.Sprintf(litellmConf, redisHost, redisPort)
	for _, p := range hop.Paces {
		conf += fmt.Sprintf("  - model_name: %s-%s\n    litellm_params: {model: openai/bench-%s, api_base: \"http://%s%s/v1\", api_key: none, rpm: 100000000, tpm: 100000000000}\n",
			p.Word(), run, run, s.upstream, p)
	}
	file := filepath.Join(s.dir, "litellm.yaml")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		return nil, hop.Target{}, err
	}
	program, err := filepath.Abs(filepath.Join(s.peers, "litellm/bin/litellm"))
	if err != nil {
		return nil, hop.Target{}, err
	}
	p, err := hop.Start(program, []string{"--config", file, "--host", "127.0.0.1", "--port", s.port(), "--num_workers", "2", "--telemetry", "False"},
		[]string{"LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_LOG=ERROR", "HOME=" + s.dir})
	return p, hop.Target{Requests: func(pace hop.Pace, stream bool) [][]byte {
		return [][]byte{request(s.addr, "/v1/chat/completions", pace.Word()+"-"+run, stream)}
	}}, err
}

func startBifrost(context.Context, stage) (*hop.Process, hop.Target, error) {
	return nil, hop.Target{}, errors.New("its program is here, but with which settings it should run has not been tried")
}
