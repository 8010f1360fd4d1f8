//! Rotary frequencies and their scalings.
//!
//! Source: Su et al. 2021, arXiv:2104.09864, section 3.4.2; linear: Chen et al. 2023, arXiv:2306.15595, equation 4; YaRN: Peng
//! et al. 2023, arXiv:2309.00071, definition 2 and equation 22, with the ramp over pairs of the authors' code, which
//! checkpoints are trained with; factors of each pair: Ding et al. 2024, arXiv:2402.13753.

use std::f64::consts::PI;

/// Rotary embedding, from the checkpoint's metadata. Pair `i` at position `p` turns by `p f(i)`, with the base frequency
/// `b(i) = theta^(-2i / dims)`, divided by a factor of the pair where the checkpoint has such, and
/// `f(i) = b(i) (e + (1 - e) / factor)`, `e` the extrapolated share of the pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// R: dims of a head that turn, the first ones, a multiple of 8; the others stay as they are.
    pub dims: usize,
    /// Base of the frequencies.
    pub theta: f32,
    /// Frequencies are divided by this, as far as they are not extrapolated.
    pub factor: f32,
    /// YaRN: `e` of pairs that turn `beta_fast` times or more within the original context; 0: linear scaling.
    pub ext_factor: f32,
    /// YaRN: turns within the original context from which a pair is extrapolated.
    pub beta_fast: f32,
    /// YaRN: turns within the original context up to which a pair is not extrapolated.
    pub beta_slow: f32,
    /// cos and sin are multiplied by this, and by YaRN's `0.1 ln(factor) + 1` where there is an `ext_factor`.
    pub attn_factor: f32,
    /// Positions the model was trained for before it was scaled.
    pub original_context: usize,
}

impl RopeConfig {
    /// Not scaled, with another base.
    pub(super) fn unscaled(self, theta: f32) -> Self {
        Self { theta, factor: 1.0, ext_factor: 0.0, attn_factor: 1.0, ..self }
    }

    /// cos and sin of each (position, pair): `[context, R]`, computed in f64. `factors`: one for each pair.
    pub(super) fn table(&self, context: usize, factors: Option<&[f32]>) -> Vec<f32> {
        let frequencies: Vec<f64> = (0..self.dims / 2)
            .map(|i| {
                let base = f64::from(self.theta).powf(-2.0 * i as f64 / self.dims as f64);
                let extrapolated = self.extrapolated(i);
                let scale = extrapolated + (1.0 - extrapolated) / f64::from(self.factor);
                base * scale / factors.map_or(1.0, |f| f64::from(f[i]))
            })
            .collect();
        let magnitude = self.magnitude();
        let turn = |position: usize, f: f64| {
            let (sin, cos) = (position as f64 * f).sin_cos();
            [(magnitude * cos) as f32, (magnitude * sin) as f32]
        };
        (0..context).flat_map(|p| frequencies.iter().flat_map(move |f| turn(p, *f))).collect()
    }

    /// What cos and sin are multiplied by: attention's temperature, on q and k alike.
    fn magnitude(&self) -> f64 {
        let yarn = if self.ext_factor > 0.0 { 0.1 * f64::from(self.factor.max(1.0)).ln() + 1.0 } else { 1.0 };
        f64::from(self.attn_factor) * yarn
    }

    /// The extrapolated share of pair `i`: `ext_factor` below the pair of `beta_fast` turns, 0 above that of `beta_slow`.
    fn extrapolated(&self, i: usize) -> f64 {
        let (dims, theta, context) = (self.dims as f64, f64::from(self.theta), self.original_context as f64);
        let pair_of = |turns: f32| dims * (context / (f64::from(turns) * 2.0 * PI)).ln() / (2.0 * theta.ln());
        let low = pair_of(self.beta_fast).floor().max(0.0);
        let high = pair_of(self.beta_slow).ceil().min(dims - 1.0);
        // A ramp of no width is a step.
        let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        f64::from(self.ext_factor) * (1.0 - ramp)
    }
}
