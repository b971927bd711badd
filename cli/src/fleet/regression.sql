-- What a process of one release holds at its peak more than one of another, by line of own code; then what has no own code.
with counted as (
    select p.service, count(distinct case when p.release = r.before_release then p.process end) as processes_before,
        count(distinct case when p.release = r.after_release then p.process end) as processes_after
    from processes p cross join releases r
    group by p.service
),
held as (
    select p.service, s.own_frame, s.whose,
        sum(case when p.release = r.before_release then s.peak_bytes else 0 end) as before_bytes,
        sum(case when p.release = r.after_release then s.peak_bytes else 0 end) as after_bytes
    from sites s join processes p on p.process = s.process cross join releases r
    where p.release in (r.before_release, r.after_release)
    group by p.service, s.own_frame, s.whose
),
names as (
    select frame, min(function) as function, min(file) as file, min(line) as line from frames group by frame
)
select h.service, sum(h.after_bytes) / max(c.processes_after) - sum(h.before_bytes) / max(c.processes_before) as more_bytes,
    sum(h.before_bytes) / max(c.processes_before) as before_bytes,
    sum(h.after_bytes) / max(c.processes_after) as after_bytes,
    max(c.processes_before) as processes_before, max(c.processes_after) as processes_after,
    h.whose, n.function, n.file, n.line
from held h join counted c on c.service = h.service left join names n on n.frame = h.own_frame
where c.processes_before > 0 and c.processes_after > 0
group by h.service, h.whose, n.function, n.file, n.line
having sum(h.after_bytes) / max(c.processes_after) > sum(h.before_bytes) / max(c.processes_before)
order by case when h.whose = 'own' then 0 else 1 end, more_bytes desc, n.function
limit 20
