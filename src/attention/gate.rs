//! How wide each head's beam is, chosen by what its cover errs on recent queries.

/// For each head the index of one of `costs`, which ascend, such that the sum of errors is small and the mean cost at most `budget`.
/// `errors` has those of each head at each of the costs. All begin at the least cost, which may be above the budget; then whichever
/// head gains most for each row more that it reads gets it, as far as the budget goes.
pub fn choose(errors: &[Vec<f64>], costs: &[usize], budget: usize) -> Vec<usize> {
    let mut chosen = vec![0; errors.len()];
    let mut left = (budget * errors.len()).saturating_sub(costs[0] * errors.len());
    loop {
        let wider = errors.iter().zip(&chosen).enumerate().flat_map(|(head, (errors, &now))| {
            (now + 1..costs.len()).map(move |next| {
                let more = costs[next] - costs[now];
                (head, next, more, (errors[now] - errors[next]) / more as f64)
            })
        });
        let best = wider.filter(|(_, _, more, gain)| *more <= left && *gain > 0.0).max_by(|a, b| a.3.total_cmp(&b.3));
        let Some((head, next, more, _)) = best else { return chosen };
        chosen[head] = next;
        left -= more;
    }
}
