package relay

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"tollgate/events"
	"tollgate/events/kafka"
	"tollgate/internal/testenv"
)

var kills = flag.Int("kills", 1, "how often Kafka is killed")

// ownKafka starts a Kafka of the test's own, which it may kill.
type ownKafka struct {
	t    *testing.T
	env  []string
	addr string
}

func startOwnKafka(t *testing.T) *ownKafka {
	t.Helper()
	testenv.Kafka(t) // skips where real services are not wanted
	dir, err := os.MkdirTemp("", "tollgate-kill-")
	if err != nil {
		t.Fatal(err)
	}
	port := freePorts(t)
	k := &ownKafka{t: t, addr: fmt.Sprintf("127.0.0.1:%d", port+2), env: append(os.Environ(),
		"TOLLGATE_SERVICES_DIR="+filepath.Join(dir, "services"), fmt.Sprintf("TOLLGATE_SERVICES_PORT=%d", port))}
	t.Cleanup(func() { k.run("down"); _ = os.RemoveAll(dir) })
	k.run("up", "kafka")
	return k
}

func (k *ownKafka) run(args ...string) {
	k.t.Helper()
	cmd := exec.Command("../../deploy/services", args...)
	cmd.Env = k.env
	if out, err := cmd.CombinedOutput(); err != nil {
		k.t.Fatalf("deploy/services %v: %v\n%s", args, err, out)
	}
}

// freePorts returns the first of a range in which the broker's and the
// controller's ports are free.
func freePorts(t *testing.T) int {
	t.Helper()
	for base := 27500; base < 32000; base += 32 {
		free := true
		for _, p := range []int{base + 2, base + 3} {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
			if err != nil {
				free = false
				break
			}
			_ = l.Close()
		}
		if free {
			return base
		}
	}
	t.Fatal("no free range of ports")
	return 0
}

// Kafka is killed with -9 while the relay fills it and comes back on the same
// data: every acknowledged and every waiting event is there, counted once by
// id.
func TestCaseL8_KafkaKilledWhileTheRelayFillsIt(t *testing.T) {
	k := startOwnKafka(t)
	c := newClient(t, kafka.Config{Brokers: []string{k.addr}})
	o := newMemOutbox(t, 4)
	r := startRelay(t, o, c.NewProducer(kafka.ProducerOptions{AttemptTimeout: 2 * time.Second}), func(o *Options) {
		o.PublishTimeout, o.ReadMax, o.RoundEvents = 3*time.Second, 20, 100
	})
	want := map[string]bool{}
	add := func(n int) {
		for i := range n {
			for _, e := range o.add(i%4, 2) {
				want[e.ID] = true
			}
		}
	}
	add(200)
	waitFor(t, "the first events are in Kafka", empty(o))
	for range *kills {
		add(2000)
		k.run("kill", "kafka")
		add(200)
		waitFor(t, "the relay says that Kafka is away", func() bool { return r.publishFailed() })
		k.run("up", "kafka")
		up := time.Now()
		waitFor(t, "the outbox is empty again", empty(o))
		t.Logf("caught up %s after Kafka was up", time.Since(up).Round(time.Millisecond))
	}
	waitFor(t, "healthy", func() bool { return r.Healthy() == nil })
	r.Stop()
	got := contents(t, c, events.TopicEvents)
	lost := 0
	for id := range want {
		if got[id] == 0 {
			lost++
		}
	}
	if lost > 0 || len(got) != len(want) {
		t.Errorf("of %d events %d are lost; the log has %d distinct ones", len(want), lost, len(got))
	}
	if o.mostReads > 200 {
		t.Errorf("%d entries were held at once, want at most two rounds of 100", o.mostReads)
	}
}
