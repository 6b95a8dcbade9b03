-- Takes readings in, ids in sorted order so that two writers cannot deadlock.
INSERT INTO meter_readings (event_id, kind, tenant_id, reservation_id, request_id, pool, model,
                            from_time, to_time, input_tokens, output_tokens, gpu_ms, final)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                     $8::timestamptz[], $9::timestamptz[], $10::bigint[], $11::bigint[], $12::bigint[], $13::boolean[])
    AS u (event_id, kind, tenant_id, reservation_id, request_id, pool, model,
          from_time, to_time, input_tokens, output_tokens, gpu_ms, final)
ORDER BY event_id
ON CONFLICT (event_id) DO NOTHING
RETURNING event_id
