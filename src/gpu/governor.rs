//! How much work one submission may hold.

use std::time::Duration;

/// Longest that a submission should run: the strictest drivers reset a device after 2 s.
pub const SUBMISSION: Duration = Duration::from_millis(250);

/// Half of it: what is aimed at, as equal work does not take equal time.
const AIM: Duration = SUBMISSION.checked_div(2).expect("two is not zero");

/// Learns from the time that submissions took how many workgroups the next may have. The first is a single dispatch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Governor {
    workgroups: u64,
}

impl Default for Governor {
    fn default() -> Self {
        Self { workgroups: 1 }
    }
}

impl Governor {
    /// How many of `dispatches`, given by their workgroups, the next submission takes, and their workgroups in all: at least one
    /// dispatch, where there is one.
    pub fn take(&self, dispatches: impl Iterator<Item = u64>) -> (usize, u64) {
        let (mut taken, mut all) = (0, 0);
        for workgroups in dispatches {
            if taken > 0 && all + workgroups > self.workgroups {
                break;
            }
            taken += 1;
            all += workgroups;
        }
        (taken, all)
    }

    /// A submission of so many workgroups took `time`.
    pub fn learn(&mut self, workgroups: u64, time: Duration) {
        if time > AIM {
            let share = AIM.as_secs_f64() / time.as_secs_f64();
            self.workgroups = ((workgroups as f64 * share) as u64).max(1);
        } else if 2 * time <= AIM {
            self.workgroups = self.workgroups.max(2 * workgroups);
        }
    }
}
