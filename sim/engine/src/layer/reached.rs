//! How many of several equal targets, which hold a layer's experts in order, a token is sent to where it is sent to each of them once.

use crate::model::Experts;

/// Mean number of `n` ranks or nodes that have one of a token's experts. A token visits distinct experts, all of them as likely. Where a router chooses groups
/// of experts first, they lie in the groups that it chose (Megatron-Core, `group_limited_topk`); that is heeded where targets and groups divide each other.
pub fn reached(experts: Experts, n: u32) -> f64 {
    let (n, all, chosen) = (u64::from(n.max(1)), experts.n_groups, experts.groups_of_token);
    let is_free = chosen >= all || !(n.is_multiple_of(all) || all.is_multiple_of(n));
    let [all, chosen] = if is_free { [1, 1] } else { [all, chosen] };
    let of_group = hw::real(experts.n_routed) / hw::real(all);
    let open = of_group * hw::real(chosen);
    let hit = |held: f64| 1.0 - missed(open, held, experts.top_k);
    if n.is_multiple_of(all) {
        // A target is a part of one group, and has a token where its group is chosen.
        return hw::real(n) * hw::real(chosen) / hw::real(all) * hit(hw::real(experts.n_routed) / hw::real(n));
    }
    let held = all / n;
    let of_chosen = |k: u64| chance(all, held, chosen, k) * hit(of_group * hw::real(k));
    hw::real(n) * (1..=held.min(chosen)).map(of_chosen).sum::<f64>()
}

/// Chance that none of `top_k` distinct experts out of `open` is among the `held` ones.
fn missed(open: f64, held: f64, top_k: u64) -> f64 {
    (0..top_k).map(|k| ((open - held - hw::real(k)) / (open - hw::real(k))).max(0.0)).product()
}

/// Chance that `k` of `held` groups are among `chosen` ones out of `all`.
fn chance(all: u64, held: u64, chosen: u64, k: u64) -> f64 {
    ways(held, k) * ways(all - held, chosen - k) / ways(all, chosen)
}

/// Ways to choose `k` of `n`.
fn ways(n: u64, k: u64) -> f64 {
    if k > n { 0.0 } else { (0..k).map(|index| hw::real(n - index) / hw::real(index + 1)).product() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same by going through every choice of groups, and of experts in them.
    fn enumerated(experts: Experts, n: u64) -> f64 {
        let of_group = experts.n_routed / experts.n_groups;
        let (mut sent, mut n_choices) = (0, 0);
        for groups in 0_u64..1 << experts.n_groups {
            if u64::from(groups.count_ones()) != experts.groups_of_token {
                continue;
            }
            for visited in 0_u64..1 << experts.n_routed {
                let is_open = |expert: u64| groups >> (expert / of_group) & 1 == 1;
                let mut its = (0..experts.n_routed).filter(|expert| visited >> expert & 1 == 1);
                if u64::from(visited.count_ones()) != experts.top_k || !its.all(is_open) {
                    continue;
                }
                let of_target = experts.n_routed / n;
                let has = |target: &u64| visited >> (target * of_target) & ((1 << of_target) - 1) != 0;
                sent += (0..n).filter(has).count() as u64;
                n_choices += 1;
            }
        }
        hw::real(sent) / hw::real(n_choices)
    }

    #[test]
    fn it_is_the_mean_over_all_choices() {
        for (n_routed, n_groups, groups_of_token) in [(12, 1, 1), (12, 4, 2), (12, 6, 3), (12, 2, 2), (8, 8, 4)] {
            for top_k in 1..=4.min(n_routed / n_groups * groups_of_token) {
                let experts = Experts { n_groups, groups_of_token, ..Experts::plain(n_routed, top_k, 1) };
                for n in (1..=n_routed).filter(|n| n_routed % n == 0) {
                    let divides = n % n_groups == 0 || n_groups % n == 0;
                    if !divides && groups_of_token < n_groups {
                        continue;
                    }
                    let found = reached(experts, u32::try_from(n).expect("small"));
                    let expected = enumerated(experts, n);
                    assert!((found - expected).abs() < 1e-9, "{experts:?} over {n}: {found} for {expected}");
                }
            }
        }
    }

    #[test]
    fn a_rank_for_each_expert_gets_a_token_from_as_many_as_it_visits() {
        let mixtral = Experts::plain(8, 2, 1);
        assert!((reached(mixtral, 8) - 2.0).abs() < 1e-12);
        // DeepSeek-V3: eight of 256 experts, in four of eight groups.
        let v3 = Experts { n_groups: 8, groups_of_token: 4, ..Experts::plain(256, 8, 2048) };
        assert!(reached(v3, 8) < 4.0 && reached(v3, 8) > 3.6);
        assert!(reached(v3, 64) < reached(Experts::plain(256, 8, 2048), 64));
        // Groups that lie across ranks say nothing of them.
        assert!((reached(v3, 6) - reached(Experts::plain(256, 8, 2048), 6)).abs() < 1e-12);
    }
}
