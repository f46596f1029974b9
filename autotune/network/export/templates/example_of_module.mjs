// node example.mjs

import {create} from "./@name@.mjs";

const model = await create();
@session@const outputs = @run@({
@inputs@});
for (const [name, @data@] of Object.entries(outputs)) console.log(name, data.slice(0, 4));
