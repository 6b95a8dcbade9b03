package forward

import "sync"

// room is what large bodies take, in bytes, of all tenants and of each.
type room struct {
	mu  sync.Mutex
	all int64
	of  map[string]int64 // only who has some
}

// take takes n bytes; false, and none, where the tenant would have more than its
// share or all more than there is.
func (r *room) take(tenant string, n, share, all int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all+n > all || r.of[tenant]+n > share {
		return false
	}
	if r.of == nil {
		r.of = map[string]int64{}
	}
	r.all += n
	r.of[tenant] += n
	return true
}

func (r *room) give(tenant string, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all -= n
	if r.of[tenant] -= n; r.of[tenant] == 0 {
		delete(r.of, tenant)
	}
}

func (r *room) taken() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}
