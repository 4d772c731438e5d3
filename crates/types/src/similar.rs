//! The candidate that a mistyped word most likely meant.

/// Characters of a word and number of candidates that are compared: Jaro-Winkler is quadratic in
/// the length.
const MAX_CHARS: usize = 64;
const MAX_CANDIDATES: usize = 1_000;
/// Above this score one or two wrong letters of a short word still match; below, suggestions are
/// mostly noise.
const MIN_SCORE: f64 = 0.8;

/// Returns the most similar candidate, if one is similar at all.
pub fn find_similar<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let word: String = word.chars().take(MAX_CHARS).collect();
    let scored = candidates
        .into_iter()
        .take(MAX_CANDIDATES)
        .map(|candidate| (strsim::jaro_winkler(&word, candidate), candidate));
    let best = scored
        .filter(|(score, _)| *score > MIN_SCORE)
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(best.1)
}
