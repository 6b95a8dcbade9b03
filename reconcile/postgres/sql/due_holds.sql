-- Open reservations whose TTL passed before $1, after the cursor ($2, $3).
-- Left out are those whose settlement waits with figures that cannot become
-- better, and those whose settlement was applied after $4: its event is still
-- on its way to the ledger.
SELECT r.tenant_id, r.reservation_id, r.request_id, r.state, r.expires_at,
       r.input_tokens, r.output_tokens, r.cached_input_tokens, r.reasoning_tokens,
       r.tool_calls, r.images, r.audio_ms, r.gpu_ms
FROM reservations r
WHERE r.state IN ('held', 'expired')
  AND r.expires_at <= $1
  AND (r.expires_at, r.reservation_id) > ($2, $3)
  AND NOT EXISTS (
      SELECT FROM automatic_settlements s
      WHERE s.reservation_id = r.reservation_id
        AND (s.applied_at > $4 OR (s.applied_at IS NULL AND NOT s.estimated)))
ORDER BY r.expires_at, r.reservation_id
LIMIT $5
