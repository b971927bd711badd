-- What a process of each release leaves live, and how fast its live memory grows, by service.
with ends as (
    select w.process, min(w.window_number) as first_window, max(w.window_number) as last_window,
        max(w.end_ns) - min(w.end_ns) as lasted_ns
    from windows w join processes p on p.process = w.process
    where w.end_ns <= coalesce(p.finalizing_ns, p.duration_ns)
    group by w.process
),
grown as (
    select w.process,
        sum(case when w.window_number = e.last_window then w.live_bytes else 0 end)
            - sum(case when w.window_number = e.first_window then w.live_bytes else 0 end) as bytes,
        sum(case when w.window_number in (e.first_window, e.last_window) then coalesce(w.live_bytes_variance, 0) else 0 end)
            as variance,
        max(e.lasted_ns) as lasted_ns
    from windows w join ends e on e.process = w.process
    where e.last_window > e.first_window
    group by w.process
),
sampled as (
    select process, sum(coalesce(leaked_bytes_variance, 0)) as variance from sites group by process
)
select p.service, p.release, count(*) as processes, avg(p.leaked_bytes) as leaked_bytes,
    1.96 * sqrt(sum(coalesce(s.variance, 0))) / count(*) as leaked_bytes_margin,
    max(p.leaked_bytes) as most_leaked_bytes,
    sum(g.bytes) / (sum(g.lasted_ns) / 3.6e12) as growth_bytes_per_hour,
    1.96 * sqrt(sum(g.variance)) / (sum(g.lasted_ns) / 3.6e12) as growth_bytes_per_hour_margin
from processes p left join grown g on g.process = p.process left join sampled s on s.process = p.process
group by p.service, p.release
order by leaked_bytes desc, p.service, p.release
