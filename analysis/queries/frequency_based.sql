-- What frequency-based chunking would add (seed 002, chapter 2), from the log alone: chunks of the
-- default size are coarse; segments of the fine chunking that occur at least threshold times, and lie
-- within a coarse chunk, are cut out of it and stored once. The rest of a coarse chunk is counted in
-- full, even where another chunk has the same rest: so this is what FBC gains at least, with the fine
-- chunking's boundaries for its segments. A coarse chunk that is frequent itself is left whole.
WITH frequent AS (
    SELECT fp_high, fp_low, any_value(length_bytes) AS length
    FROM fine_chunks GROUP BY fp_high, fp_low
    HAVING count(*) >= getvariable('threshold')
), coarse AS (
    SELECT count(*) AS copies, arg_min(file, (file, offset_bytes)) AS file,
           arg_min(offset_bytes, (file, offset_bytes)) AS begins, any_value(length_bytes) AS length
    FROM chunks GROUP BY fp_high, fp_low
), segments AS (
    SELECT file, offset_bytes AS begins, length_bytes AS length, fp_high, fp_low
    FROM fine_chunks JOIN (SELECT fp_high, fp_low FROM frequent) USING (fp_high, fp_low)
), inside AS (
    SELECT s.fp_high, s.fp_low, s.length, c.file, c.begins, c.copies
    FROM segments AS s ASOF JOIN coarse AS c ON s.file = c.file AND s.begins >= c.begins
    WHERE s.begins + s.length <= c.begins + c.length
      AND c.copies < getvariable('threshold')
), cut_out AS (
    -- Only what is still worth it: the segment occurs in other coarse chunks too.
    SELECT * FROM inside
    QUALIFY count(*) OVER (PARTITION BY fp_high, fp_low) > 1
), sums AS (
    SELECT count(*) AS cuts, coalesce(sum(length), 0) AS cut_bytes,
           coalesce(sum(copies), 0) AS cuts_everywhere
    FROM cut_out
), kept AS (
    SELECT count(*) AS segments, coalesce(sum(length), 0) AS segment_bytes
    FROM (SELECT fp_high, fp_low, any_value(length) AS length FROM cut_out GROUP BY fp_high, fp_low)
), coarse_sums AS (
    SELECT count(*) AS distinct_chunks, sum(copies) AS chunks, sum(length) AS unique_bytes,
           sum(copies * length) AS data_bytes
    FROM coarse
), fine_sums AS (
    SELECT count(*) AS distinct_chunks, sum(copies) AS chunks, sum(length) AS unique_bytes
    FROM (SELECT count(*) AS copies, any_value(length_bytes) AS length
          FROM fine_chunks GROUP BY fp_high, fp_low)
)
SELECT * FROM (
    SELECT 1 AS place, 'default' AS method, data_bytes::BIGINT AS data_bytes, chunks::BIGINT AS chunks,
           distinct_chunks::BIGINT AS distinct_chunks, unique_bytes::BIGINT AS unique_bytes
    FROM coarse_sums
    UNION ALL
    SELECT 2, 'frequency-based', data_bytes::BIGINT, (chunks + 2 * cuts_everywhere)::BIGINT,
           (distinct_chunks + cuts + segments)::BIGINT,
           (unique_bytes - cut_bytes + segment_bytes)::BIGINT
    FROM coarse_sums, sums, kept
    UNION ALL
    SELECT 3, 'fine', data_bytes::BIGINT, f.chunks::BIGINT, f.distinct_chunks::BIGINT,
           f.unique_bytes::BIGINT
    FROM fine_sums AS f, (SELECT data_bytes FROM coarse_sums)
)
WHERE data_bytes IS NOT NULL
ORDER BY place;
