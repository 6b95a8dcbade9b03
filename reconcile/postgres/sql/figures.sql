-- What ledger and meters say of tenant $1 in the hour [$2, $3), by model.
-- Sums saturate instead of failing, so that one absurd figure cannot keep the
-- hour from being judged.
WITH usage AS (
    SELECT model, sum(input_tokens::numeric + output_tokens) AS tokens, sum(gpu_ms) AS gpu
    FROM usage_hour WHERE tenant_id = $1 AND hour = $2 GROUP BY model
), cohort AS (
    -- A request id with a '~' is the front door's. What it counted itself is told
    -- apart, and a GPU time that nobody told it is not known rather than zero.
    SELECT reservation_id, model, input_tokens::numeric + output_tokens AS tokens, gpu_ms,
           estimated AND request_id LIKE '%~%' AS estimated, gpu_ms = 0 AND request_id LIKE '%~%' AS no_gpu
    FROM reservations
    WHERE tenant_id = $1 AND last_event_at >= $2 AND last_event_at < $3
      AND state IN ('settled', 'cancelled')
), ended AS (
    SELECT model, sum(tokens) AS tokens, sum(gpu_ms) AS gpu, sum(tokens) FILTER (WHERE estimated) AS estimated
    FROM cohort GROUP BY model
), cohort_reads AS (
    SELECT c.model, m.reservation_id, m.kind, m.pool,
           max(m.input_tokens) AS input_tokens, max(m.output_tokens) AS output_tokens,
           max(m.gpu_ms) FILTER (WHERE NOT c.no_gpu) AS gpu
    FROM cohort c
    JOIN meter_readings m ON m.tenant_id = $1 AND m.reservation_id = c.reservation_id
    WHERE m.reservation_id <> ''
    GROUP BY c.model, m.reservation_id, m.kind, m.pool
), strays AS (
    -- Readings of reservations that the ledger does not know for this tenant.
    -- Such a reservation belongs to the hour of its last reading.
    SELECT DISTINCT m.reservation_id
    FROM meter_readings m
    WHERE m.tenant_id = $1 AND m.to_time > $2 AND m.to_time <= $3 AND m.reservation_id <> ''
      AND NOT EXISTS (SELECT FROM reservations r WHERE r.reservation_id = m.reservation_id AND r.tenant_id = $1)
      AND NOT EXISTS (SELECT FROM meter_readings l
                      WHERE l.tenant_id = $1 AND l.reservation_id = m.reservation_id AND l.to_time > $3)
), stray_reads AS (
    SELECT max(m.model) AS model, m.reservation_id, m.kind, m.pool,
           max(m.input_tokens) AS input_tokens, max(m.output_tokens) AS output_tokens, max(m.gpu_ms) AS gpu
    FROM strays s
    JOIN meter_readings m ON m.tenant_id = $1 AND m.reservation_id = s.reservation_id
    WHERE m.reservation_id <> ''
    GROUP BY m.reservation_id, m.kind, m.pool
), reads AS (
    SELECT false AS stray, * FROM cohort_reads UNION ALL SELECT true, * FROM stray_reads
), by_reservation AS (
    SELECT stray, max(model) AS model, reservation_id,
           max(input_tokens) FILTER (WHERE kind = 'model')::numeric
             + max(output_tokens) FILTER (WHERE kind = 'model') AS tokens,
           sum(gpu) FILTER (WHERE kind = 'gpu') AS gpu
    FROM reads GROUP BY stray, reservation_id
), read AS (
    SELECT model,
           sum(tokens) FILTER (WHERE NOT stray) AS tokens, sum(gpu) FILTER (WHERE NOT stray) AS gpu,
           sum(tokens) FILTER (WHERE stray) AS stray_tokens, sum(gpu) FILTER (WHERE stray) AS stray_gpu,
           count(tokens) AS token_reads, count(gpu) AS gpu_reads
    FROM by_reservation GROUP BY model
), intervals AS (
    SELECT model,
           sum(input_tokens::numeric + output_tokens) FILTER (WHERE kind = 'model') AS tokens,
           sum(gpu_ms) FILTER (WHERE kind = 'gpu') AS gpu,
           count(*) FILTER (WHERE kind = 'model') AS token_reads,
           count(*) FILTER (WHERE kind = 'gpu') AS gpu_reads
    FROM meter_readings
    WHERE tenant_id = $1 AND reservation_id = '' AND to_time > $2 AND to_time <= $3
    GROUP BY model
)
SELECT model, least(greatest(coalesce(u.tokens, 0), -9223372036854775808), 9223372036854775807)::bigint, least(greatest(coalesce(u.gpu, 0), -9223372036854775808), 9223372036854775807)::bigint, least(greatest(coalesce(e.tokens, 0), -9223372036854775808), 9223372036854775807)::bigint, least(greatest(coalesce(e.gpu, 0), -9223372036854775808), 9223372036854775807)::bigint,
       least(greatest(coalesce(r.tokens, 0), -9223372036854775808), 9223372036854775807)::bigint, least(greatest(coalesce(r.gpu, 0), -9223372036854775808), 9223372036854775807)::bigint, least(greatest(coalesce(r.stray_tokens, 0), -9223372036854775808), 9223372036854775807)::bigint, least(greatest(coalesce(r.stray_gpu, 0), -9223372036854775808), 9223372036854775807)::bigint,
       coalesce(r.token_reads, 0), coalesce(r.gpu_reads, 0),
       least(greatest(coalesce(i.tokens, 0), -9223372036854775808), 9223372036854775807)::bigint, least(greatest(coalesce(i.gpu, 0), -9223372036854775808), 9223372036854775807)::bigint, coalesce(i.token_reads, 0), coalesce(i.gpu_reads, 0),
       least(greatest(coalesce(e.estimated, 0), -9223372036854775808), 9223372036854775807)::bigint
FROM usage u
FULL JOIN ended e USING (model)
FULL JOIN read r USING (model)
FULL JOIN intervals i USING (model)
ORDER BY model
