// All variants by name, in the order in which they are offered.
import { l2 } from "./variants/l2.js";
import { sigmoid } from "./variants/sigmoid.js";
import { sinkhorn } from "./variants/sinkhorn.js";
import { softmax } from "./variants/softmax.js";

export const VARIANTS = { softmax, l2, sinkhorn, sigmoid };
