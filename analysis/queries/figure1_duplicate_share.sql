-- Figure 1: bytes of files by the share of their chunks that also occur in another file, in steps
-- of 5 %, and how many of those bytes are in such chunks. A file is in the step its share falls in;
-- the step 100 has the files of which every chunk occurs elsewhere.
WITH per_file AS (
    SELECT c.dataset, c.file,
           avg(d.in_several_files::INT) AS share,
           sum(c.length_bytes) AS data_bytes,
           coalesce(sum(c.length_bytes) FILTER (d.in_several_files), 0) AS duplicate_bytes
    FROM chunks AS c JOIN distinct_chunks AS d USING (dataset, fp_high, fp_low)
    GROUP BY c.dataset, c.file
)
SELECT label AS dataset, 5 * floor(share * 20)::INT AS share_percent,
       count(*) AS files,
       sum(data_bytes)::BIGINT AS data_bytes,
       sum(duplicate_bytes)::BIGINT AS duplicate_bytes
FROM per_file JOIN datasets USING (dataset)
GROUP BY label, dataset, share_percent
ORDER BY dataset, share_percent;
