-- What grew most between the first and the last whole window of each process, by line of own code, over all processes that hold it,
-- beyond what samples leave open. Those in which it shrank count, too: else the samples' noise would grow. What imports hold comes last.
with ends as (
    select w.process, min(w.window_number) as first_window, max(w.window_number) as last_window,
        max(w.end_ns) - min(w.end_ns) as lasted_ns, max(p.sample_bytes) as sample_bytes
    from windows w join processes p on p.process = w.process
    where w.end_ns <= coalesce(p.finalizing_ns, p.duration_ns)
    group by w.process
),
-- A line has a frame for each of its columns: in a process they are one.
names as (
    select frame, min(function) as function, min(file) as file, min(line) as line from frames group by frame
),
-- Windows do not say whose memory it is; the stacks of the sites do.
owners as (
    select process, coalesce(stack, 0) as stack, min(whose) as whose from sites group by process, coalesce(stack, 0)
),
-- What is live at both ends has the same samples, whose chance is in no difference: a stack has at most the variance of what it
-- allocated and freed in between, and at most that of both ends.
of_stacks as (
    select w.process, w.service, w.host, w.own_frame, coalesce(w.stack, 0) as stack, max(e.sample_bytes) as sample_bytes,
        sum(case when w.window_number = e.first_window then w.live_bytes else 0 end) as first_bytes,
        sum(case when w.window_number = e.last_window then w.live_bytes else 0 end) as last_bytes,
        least(sum(case when w.window_number in (e.first_window, e.last_window) then coalesce(w.live_bytes_variance, 0) else 0 end),
            sum(case when w.window_number > e.first_window and w.window_number <= e.last_window
                then coalesce(w.allocated_bytes_variance, 0) + coalesce(w.freed_bytes_variance, 0) else 0 end)) as variance,
        max(e.lasted_ns) as lasted_ns
    from windows w join ends e on e.process = w.process
    where e.last_window > e.first_window
    group by w.process, w.service, w.host, w.own_frame, coalesce(w.stack, 0)
),
grown as (
    select s.process, s.service, s.host, o.whose, n.function, n.file, n.line, max(s.sample_bytes) as sample_bytes,
        sum(s.first_bytes) as first_bytes, sum(s.last_bytes) as last_bytes, sum(s.variance) as variance,
        max(s.lasted_ns) as lasted_ns
    from of_stacks s left join names n on n.frame = s.own_frame
        left join owners o on o.process = s.process and o.stack = s.stack
    group by s.process, s.service, s.host, o.whose, n.function, n.file, n.line
),
summed as (
    select g.service, cast(sum(g.last_bytes) - sum(g.first_bytes) as bigint) as grown_bytes,
        -- What has no sample at first, or at last, may have been there all the same; what was counted was not.
        sqrt(power(1.96, 2) * sum(g.variance)
            + case when sum(g.variance) > 0
                    and least(sum(case when g.sample_bytes is not null then g.first_bytes else 0 end),
                        sum(case when g.sample_bytes is not null then g.last_bytes else 0 end)) = 0
                then power(3.0 * coalesce(max(g.sample_bytes), 0), 2) else 0 end) as grown_bytes_margin,
        sum(g.lasted_ns) / 3.6e12 as hours,
        count(distinct g.host) as hosts, count(distinct g.process) as processes,
        g.whose, g.function, g.file, g.line
    from grown g
    group by g.service, g.whose, g.function, g.file, g.line
)
select service, grown_bytes, grown_bytes_margin, grown_bytes / hours as bytes_per_hour_and_process,
    grown_bytes_margin / hours as bytes_per_hour_and_process_margin, hosts, processes, whose, function, file, line
from summed
where grown_bytes > grown_bytes_margin
order by case when whose = 'imports' then 1 else 0 end, grown_bytes desc, function nulls last, file nulls last, line nulls last
limit 20
