-- How high the processes of each service peak: the median, the 95th percentile, and the most.
with sampled as (
    select process, sum(coalesce(peak_bytes_variance, 0)) as variance from sites group by process
)
select p.service, count(*) as processes, count(distinct p.host) as hosts,
    percentile_cont(0.5) within group (order by peak_bytes) as median_peak_bytes,
    percentile_cont(0.95) within group (order by peak_bytes) as p95_peak_bytes,
    max(peak_bytes) as most_peak_bytes,
    1.96 * sqrt(max(coalesce(s.variance, 0))) as most_peak_bytes_margin,
    percentile_cont(0.95) within group (order by peak_rss_bytes) as p95_peak_rss_bytes
from processes p left join sampled s on s.process = p.process
group by p.service
order by p95_peak_bytes desc, p.service
