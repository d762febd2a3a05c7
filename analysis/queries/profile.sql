-- What a store would take if a profile were enabled now: only files that are large and old enough
-- (min_size_bytes, min_age_s), of no type that is left alone (exclude_types), and that save enough of
-- their blocks (min_file_saving). With the headers and paddings of records (header_bytes,
-- align_bytes), and entry_bytes for each chunk in its container's table. Recipes: a record for each
-- distinct file of more than one chunk.
WITH asked AS (
    SELECT *
    FROM files
    WHERE length_bytes + hole_bytes >= getvariable('min_size_bytes')
      AND changed_s <= getvariable('collected_s') - getvariable('min_age_s')
      AND NOT list_contains(getvariable('exclude_types')::VARCHAR[], type)
), met AS (
    SELECT c.fp_high, c.fp_low, any_value(c.length_bytes) AS length,
           any_value(stored(c.length_bytes, c.compressed_bytes)) AS payload,
           count(DISTINCT file) AS owners
    FROM chunks AS c JOIN (SELECT file FROM asked) AS a USING (file)
    GROUP BY c.fp_high, c.fp_low
), shrunk AS (
    SELECT coalesce(sum(payload) / sum(length) FILTER (payload IS NOT NULL), 1) AS ratio
    FROM met
), costs AS (
    -- What each file adds to the store, if all of its owners pay for a chunk.
    SELECT file, count(*) AS chunks,
           sum((getvariable('entry_bytes') + getvariable('align_bytes') * ceil(
               (coalesce(payload, length * ratio) + getvariable('header_bytes'))
               / getvariable('align_bytes'))) / owners) AS bytes
    FROM (SELECT DISTINCT c.file, c.fp_high, c.fp_low
          FROM chunks AS c JOIN (SELECT file FROM asked) AS a USING (file)) AS own
        JOIN met USING (fp_high, fp_low), shrunk
    GROUP BY file
), eligible AS (
    SELECT asked.*, row_number() OVER (
               PARTITION BY fp_high, fp_low, length_bytes + hole_bytes ORDER BY file) = 1 AS first
    FROM asked LEFT JOIN costs USING (file),
        LATERAL (SELECT 4096 * ceil(length_bytes / 4096) AS freed,
                     coalesce(costs.bytes, 0) + CASE WHEN coalesce(costs.chunks, 0) = 1 THEN 0
                         ELSE 2 * (getvariable('header_bytes') + getvariable('entry_bytes')
                             + getvariable('recipe_header_bytes')
                             + coalesce(costs.chunks, 0) * getvariable('recipe_entry_bytes'))
                         END AS cost)
    -- A sample of the chunks does not tell about single files.
    WHERE getvariable('sample') < 1
        OR (freed > cost AND freed - cost >= freed * getvariable('min_file_saving'))
), per_chunk AS (
    SELECT any_value(c.length_bytes) AS length,
           any_value(stored(c.length_bytes, c.compressed_bytes)) AS payload,
           count(*) FILTER (e.first) AS firsts
    FROM chunks AS c JOIN (SELECT file, first FROM eligible) AS e USING (file)
    GROUP BY c.fp_high, c.fp_low
), sums AS (
    SELECT moments(length, length * firsts) AS u,
           moments_measured(payload, length, length * firsts) AS payloads,
           moments_measured(getvariable('align_bytes') * ceil(
               (payload + getvariable('header_bytes')) / getvariable('align_bytes')),
               length, length * firsts) AS records
    FROM per_chunk
), recipes AS (
    SELECT count(*) AS recipes, coalesce(sum(chunks), 0) AS entries
    FROM (SELECT e.file, scaled(count(*)) AS chunks
          FROM chunks AS c JOIN (SELECT file FROM eligible WHERE first) AS e USING (file)
          GROUP BY e.file)
    WHERE chunks > 1
), totals AS (
    SELECT count(*) AS files, coalesce(sum(length_bytes), 0) AS data_bytes,
           coalesce(sum(chunk_bytes) FILTER (first), 0) AS firsts
    FROM eligible JOIN (SELECT file, chunk_bytes FROM files_in_chunks) USING (file)
)
SELECT files, data_bytes::DOUBLE AS data_bytes,
       scaled(u.n) AS distinct_chunks,
       estimate(u, firsts) AS unique_bytes,
       estimate_measured(payloads, u, firsts) AS payload_bytes,
       estimate_measured(records, u, firsts) AS record_bytes,
       deviation_measured(records, u) AS record_deviation,
       scaled(u.n) * getvariable('entry_bytes') AS table_bytes,
       recipes * (getvariable('header_bytes') + getvariable('recipe_header_bytes'))
           + entries * getvariable('recipe_entry_bytes') AS recipe_bytes
FROM sums, recipes, totals;
