-- The distinct chunks of every dataset for the default chunking: the base of figures 1, 3 and 4.
CREATE TABLE distinct_chunks AS
SELECT dataset, fp_high, fp_low,
       count(*) AS copies,
       min(file) <> max(file) AS in_several_files,
       any_value(length_bytes) AS length_bytes,
       any_value(compressed_bytes) AS compressed_bytes
FROM chunks
GROUP BY dataset, fp_high, fp_low;
