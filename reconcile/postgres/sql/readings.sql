-- The highest reading of each reservation. Readings are cumulative; a GPU
-- reading is so within its pool, and a reservation may use several pools. Only
-- readings that name the reservation's own tenant count.
WITH wanted AS (
    SELECT * FROM unnest($1::text[], $2::text[]) AS w (tenant_id, reservation_id)
), by_pool AS (
    SELECT m.reservation_id, m.kind, m.pool,
           max(m.input_tokens) AS input_tokens, max(m.output_tokens) AS output_tokens,
           max(m.gpu_ms) AS gpu_ms, bool_or(m.final) AS final
    FROM wanted w
    JOIN meter_readings m ON m.tenant_id = w.tenant_id AND m.reservation_id = w.reservation_id
    WHERE m.reservation_id <> ''
    GROUP BY m.reservation_id, m.kind, m.pool
)
SELECT reservation_id,
       bool_or(kind = 'model'),
       coalesce(bool_or(final) FILTER (WHERE kind = 'model'), false),
       coalesce(max(input_tokens) FILTER (WHERE kind = 'model'), 0),
       coalesce(max(output_tokens) FILTER (WHERE kind = 'model'), 0),
       bool_or(kind = 'gpu'),
       least(coalesce(sum(gpu_ms) FILTER (WHERE kind = 'gpu'), 0), 9223372036854775807)::bigint
FROM by_pool
GROUP BY reservation_id
