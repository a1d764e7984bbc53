// Numbers and times as people read them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(number) {
  return WHOLE.format(number);
}

/** 0.42, 7.3, 812, 12.3k, 4.1M: three digits at most. */
export function rate(number) {
  if (number <= 0) return "0";
  if (number < 0.995) return number.toFixed(2);
  if (number < 9.95) return number.toFixed(1);
  if (number < 999.5) return number.toFixed(0);
  const [divisor, unit] = number < 999_500 ? [1e3, "k"] : [1e6, "M"];
  const scaled = number / divisor;
  return `${scaled.toFixed(scaled < 99.95 ? 1 : 0)}${unit}`;
}

/** The same, for an axis: 50k, not 50.0k. */
export function level(number) {
  return rate(number).replace(/\.0+(?=[kM]?$)/, "");
}

/** 8 s, 4 min, 3 h 20 min, 2 d 4 h. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return joined(hours, "h", minutes % 60, "min");
  return joined(Math.floor(hours / 24), "d", hours % 24, "h");
}

function joined(large, largeUnit, small, smallUnit) {
  return small ? `${large} ${largeUnit} ${small} ${smallUnit}` : `${large} ${largeUnit}`;
}

/** Rounded down: 100 % is said when all is done, and not before. */
export function percent(part, whole) {
  if (whole <= 0) return "0 %";
  return `${(Math.floor((part / whole) * 1000) / 10).toFixed(1)} %`;
}

export function clock(epoch_s) {
  return new Date(epoch_s * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
