// Numbers as people type and read them.

const NAMED = new Map([["π", Math.PI], ["pi", Math.PI], ["∞", Infinity], ["inf", Infinity], ["infinity", Infinity], ["nan", NaN]]);

// "1/3", "2^-24", "3*2^-5", "π", "-inf" → double; undefined where it is not a number that can be read.
export function parseNumber(text) {
  const [, sign, body] = text.trim().replace("−", "-").toLowerCase().match(/^([-+]?)(.*)$/s);
  const parts = body.replaceAll("_", "").replaceAll("**", "^").split(/([*/])/);
  let result = parseAtom(parts[0]);
  for (let i = 1; i < parts.length; i += 2) {
    const next = parseAtom(parts[i + 1]);
    if (next === undefined || result === undefined) return undefined;
    result = parts[i] === "*" ? result * next : result / next;
  }
  return result === undefined || sign !== "-" ? result : -result;
}

function parseAtom(text) {
  const atom = text.trim();
  if (NAMED.has(atom)) return NAMED.get(atom);
  const power = atom.match(/^(\d+)\^([-+]?\d+)$/);
  if (power) return power[1] === "2" && Math.abs(power[2]) < 1023 ? powerOfTwo(Number(power[2])) : power[1] ** power[2];
  return /^(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/.test(atom) ? Number(atom) : undefined;
}

// A double as the reader would type it.
function asTyped(x) {
  return Object.is(x, -0) ? "-0" : String(x).replace("NaN", "nan").replace("Infinity", "inf").replace("e+", "e");
}

// How many significant digits tell neighbouring numbers of a format apart; seven at least, for a stable look.
function digitsOf(format) {
  return Math.max(7, 1 + Math.ceil((1 + format.fraction_bits) * Math.log10(2)));
}

// A number, exact where nine digits hold it, else with `digits` significant digits.
export function shown(x, digits) {
  if (Number.isNaN(x)) return "nan";
  if (!Number.isFinite(x)) return x < 0 ? "−∞" : "∞";
  if (x === 0) return Object.is(x, -0) ? "−0" : "0";
  const isShort = Number(x.toPrecision(9)) === x;
  const short = isShort || digits >= 17 ? x : Number(x.toPrecision(digits));
  const size = Math.abs(short);
  const text = size < 1e-4 || size >= 1e9 ? short.toExponential().replace("e+", "e") : String(short);
  return text.replaceAll("-", "−");
}

// Two digits say how large an error is; a large one keeps its whole part.
function shownError(x) {
  if (Number.isNaN(x)) return "";
  return shown(x >= 100 && x < 1e9 ? Math.round(x) : Number(x.toPrecision(2)), 2);
}
