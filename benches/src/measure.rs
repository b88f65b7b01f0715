//! Interleaved rounds, and the median with its spread.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

/// What many rounds have shown of one figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (figures.first(), figures.last()) else {
            panic!("no round was measured");
        };
        Self {
            median: figures[figures.len() / 2],
            least: *least,
            most: *most,
        }
    }
}

/// Three digits that count, and the spread in brackets.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, least, most] = [self.median, self.least, self.most].map(short);
        write!(f, "{median} [{least}..{most}]")
    }
}

/// A figure with three digits that count.
pub(crate) fn short(figure: f64) -> String {
    let decimals = match figure.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 || size == 0.0 => 2,
        _ => 4,
    };
    format!("{figure:.decimals$}")
}

/// The figure below which a share of all lies; `sorted` is not empty.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Jain's index of fairness (Jain, Chiu, Hawe 1984): 1 where all had the same, 1/n where one had
/// all.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// What runs for one slice of time and says what it has seen.
pub(crate) type Side<'a, T> = Box<dyn FnMut() -> Pin<Box<dyn Future<Output = T> + 'a>> + 'a>;

/// Makes a [`Side`] of a closure that gives futures.
pub(crate) fn side<'a, T, F>(mut slice: impl FnMut() -> F + 'a) -> Side<'a, T>
where
    F: Future<Output = T> + 'a,
{
    Box::new(move || Box::pin(slice()))
}

/// Lets all sides run in turn, and once before that to warm them up. Gives what each has seen, round
/// by round.
pub(crate) async fn interleave<T>(rounds: usize, sides: &mut [Side<'_, T>]) -> Vec<Vec<T>> {
    interleave_cold(1, sides).await;
    interleave_cold(rounds, sides).await
}

/// The same for sides that warm up by themselves in each slice.
///
/// Each round begins with another side, so that none is always behind the same.
pub(crate) async fn interleave_cold<T>(rounds: usize, sides: &mut [Side<'_, T>]) -> Vec<Vec<T>> {
    let mut seen: Vec<Vec<T>> = sides.iter().map(|_| Vec::new()).collect();
    let count = sides.len();
    for round in 0..rounds {
        for turn in 0..count {
            let number = (round + turn) % count;
            seen[number].push(sides[number]().await);
        }
    }
    seen
}

/// The ratio of two sides' figures, round by round.
pub(crate) fn ratio<T>(ours: &[T], theirs: &[T], figure: impl Fn(&T) -> f64) -> Spread {
    let pairs = ours.iter().zip(theirs);
    Spread::of(pairs.map(|(ours, theirs)| figure(ours) / figure(theirs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_middle_and_both_ends() {
        let spread = Spread::of([3.0, 1.0, 200.0]);
        assert_eq!(spread.to_string(), "3.00 [1.00..200]");
    }

    #[test]
    fn quantiles_are_figures_that_were_seen() {
        let figures = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(quantile(&figures, 0.5), 2.0);
        assert_eq!(quantile(&figures, 0.99), 4.0);
        assert_eq!(quantile(&figures, 0.0), 1.0);
    }

    #[test]
    fn fairness_is_one_for_equal_shares_and_one_of_n_for_one_taker() {
        assert_eq!(jain(&[5.0, 5.0]), 1.0);
        assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), 0.25);
    }
}
