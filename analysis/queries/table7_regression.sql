-- Table 7: savings with basic and with regression chunking, by file type; the types with the most
-- data. No compression. Duplicates are looked for among files of the same type.
WITH per_chunk AS (
    SELECT c.chunking, f.type, any_value(c.length_bytes) AS length,
           count(*) FILTER (f.first_overall) AS firsts
    FROM both_chunkings AS c JOIN (SELECT file, type, first_overall FROM files) AS f USING (file)
    GROUP BY c.chunking, f.type, c.fp_high, c.fp_low
), sums AS (
    SELECT chunking, type, moments(length, length * firsts) AS m
    FROM per_chunk GROUP BY chunking, type
), totals AS (
    SELECT type, sum(length_bytes) AS data_bytes,
           coalesce(sum(chunk_bytes) FILTER (first_overall), 0) AS firsts
    FROM files_in_chunks GROUP BY type
)
SELECT t.type, any_value(data_bytes)::DOUBLE AS data_bytes,
       1 - max(estimate(m, firsts)) FILTER (chunking LIKE '%-basic') / any_value(data_bytes) AS basic,
       1 - max(estimate(m, firsts)) FILTER (chunking NOT LIKE '%-basic') / any_value(data_bytes)
           AS regression
FROM totals AS t JOIN sums USING (type)
WHERE data_bytes > 0
GROUP BY t.type
ORDER BY data_bytes DESC, t.type
LIMIT getvariable('types_max');
